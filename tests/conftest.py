"""Fixtures for all tests."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = [
    "tests.support.leftovers",
    "tests.support.servers",
    "tests.support.workers",
    "tests.support.worlds",
]

# The rest as Hypothesis has it, at a desk and in CI; but a busy machine is no finding.
settings.register_profile("patient", settings(), deadline=None)
settings.load_profile("patient")
