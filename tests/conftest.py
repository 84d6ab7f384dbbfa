"""Fixtures for all tests."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from gnsqsync.runtime import troubles

pytest_plugins = [
    "tests.support.leftovers",
    "tests.support.marks",
    "tests.support.needs",
    "tests.support.seeds",
    "tests.support.servers",
    "tests.support.unsure",
    "tests.support.workers",
    "tests.support.worlds",
    # They import some of the above.
    "tests.support.commands",
    "tests.support.mariadb",
    "tests.support.postgres",
]

# Ten thousand tests and all modules live as long as the run. The cyclic collector would look
# through them while they are made, and again for each test that collects.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


# The rest as Hypothesis has it, at a desk and in CI; but a busy machine is no finding.
settings.register_profile("patient", settings(), deadline=None)
settings.load_profile("patient")

# A shell starts what runs in the background with SIGINT ignored, which all children would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _nothing_told() -> None:
    """What one test has told of an address does not make the next one's log silent."""
    troubles._of.clear()


@pytest.fixture
def hangups() -> Iterator[None]:
    """SIGHUP as a terminal sends it, also in a run that ``nohup`` has started."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
