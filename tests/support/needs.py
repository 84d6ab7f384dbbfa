"""The verdict on a test whose need is not met: skipped, or failed if the need was promised.

Knows pytest and the environment. Does not know the needs themselves.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import NoReturn, TypeVar

import pytest

# Environment variable that is "all" if the packages of all extras are installed.
EXTRAS = "GNSQSYNC_TEST_EXTRAS"


Report = TypeVar("Report", pytest.CollectReport, pytest.TestReport)


class NoExtra(Exception):
    """A Python package is not installed. The text names the extra of gnsqsync that has it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"no {package}: pip install -e '.[{extra}]'")


def missing(reason: Exception) -> NoReturn:
    """Skip the test, or fail it if its need was promised.

    ``CI=true`` promises the tools of the machine (Go, Java, a browser, databases).
    ``GNSQSYNC_TEST_EXTRAS=all`` promises the packages of all extras. ``CI=true`` does not, because
    the README's command installs only ``.[test]``.
    """
    if isinstance(reason, NoExtra):
        is_promised = _are_extras_promised()
    else:
        is_promised = os.environ.get("CI") == "true"
    if is_promised:
        pytest.fail(str(reason), pytrace=False)
    pytest.skip(str(reason))


def _are_extras_promised() -> bool:
    return os.environ.get(EXTRAS) == "all"


def _judged(report: Report) -> Report:
    """Fail a test that ``pytest.importorskip`` skipped although the package was promised."""
    if report.skipped and _are_extras_promised() and isinstance(report.longrepr, tuple):
        _, _, reason = report.longrepr
        if "could not import" in reason:
            report.outcome = "failed"
            report.longrepr = reason
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _judged((yield))
