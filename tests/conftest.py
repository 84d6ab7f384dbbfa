"""Fixtures for all tests."""

from __future__ import annotations

import signal

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

# A shell starts what runs in the background with SIGINT ignored, which all children would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
