"""Fixtures for all tests."""

from __future__ import annotations

pytest_plugins = [
    "tests.support.leftovers",
    "tests.support.servers",
    "tests.support.workers",
    "tests.support.worlds",
]
