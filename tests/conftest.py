"""Fixtures for all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings, strategies

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
    # Plugins that import some of those above.
    "tests.support.commands",
    "tests.support.mariadb",
    "tests.support.postgres",
]

# Ten thousand tests and all modules live as long as the run. The cyclic collector would look
# through them while they are made, and again for each test that collects.
gc.disable()


def pytest_collection_finish() -> None:
    # Hypothesis looks in its first test, by the collector, for what holds its random numbers, and
    # would not find what is frozen.
    given(strategies.none())(lambda nothing: None)()
    gc.freeze()
    gc.enable()


# A busy machine is no finding, so there is no deadline. The first two rings draw the same examples
# in each run, at a desk and in CI; a campaign draws new ones.
settings.register_profile("same", settings(), deadline=None, derandomize=True)
settings.register_profile("new", settings(), deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("new" if "campaign" in config.getoption("markexpr") else "same")


def pytest_sessionstart() -> None:
    # Else the first fsync of a server or database would wait for all that pip has just written.
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.sync()
    _free_the_locks_of_coverage()


def _free_the_locks_of_coverage() -> None:
    """Let a signal, the collector or a fork interrupt coverage while it holds a lock.

    It would wait for itself: https://github.com/coveragepy/coveragepy/issues/1892.
    """
    coverage = sys.modules.get("coverage")
    measured = None if coverage is None else coverage.Coverage.current()
    collector = getattr(measured, "_collector", None)
    if getattr(collector, "data_lock", None) is None:
        return
    collector.data_lock = data = threading.RLock()
    # sys.monitoring has one tracer for all threads, with a second lock.
    for tracer in collector.tracers:
        if hasattr(tracer, "sysmon_on"):
            tracer.lock_data, tracer.unlock_data = data.acquire, data.release
            tracer.lock = lock = threading.RLock()
            os.register_at_fork(
                before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
            )


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
