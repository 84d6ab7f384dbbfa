"""The list of unsure tests: at most five, each with its date and the known facts.

They run, the end of a run shows their outcome, and their failure does not fail the run. ``python -m
tests.support.unsure`` prints the tests that have been on the list for more than fourteen days.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from datetime import date, timedelta
from typing import NamedTuple

import pytest

AT_MOST = 5
DAYS = 14
WHAT_FAILED = "what failed"


class Unsure(NamedTuple):
    """An entry of the list. ``test``: its name in pytest's form, with or without parameters."""

    test: str
    since: date
    known: str

    def names(self, nodeid: str) -> bool:
        """Return True if the entry is about this test."""
        return nodeid == self.test or nodeid.startswith(f"{self.test}[")


LIST: tuple[Unsure, ...] = (
    Unsure(
        "tests/integration/test_time_limit.py::test_limits_that_come_in_the_middle_of_publishes",
        date(2026, 11, 26),
        "on CPython 3.14 a limit that strikes where the standard library has just taken a lock"
        " leaves the lock taken (python/cpython#148874), so a reading thread may stay",
    ),
)


def problem_of(entries: Sequence[Unsure], today: date) -> str:
    """Return a sentence on what is wrong with the list, or ""."""
    if len(entries) > AT_MOST:
        return f"{len(entries)} tests are unsure, {AT_MOST} may be: make one of them sure"
    for entry in entries:
        if entry.since > today:
            return f"{entry.test} is unsure since {entry.since}, which is no day of the past"
        if not entry.known.strip():
            return f"{entry.test} is unsure, and the list does not say what is known of it"
    return ""


def overdue(entries: Sequence[Unsure], today: date) -> list[str]:
    """Return a line for each entry that is older than fourteen days."""
    return [
        f"{entry.test} has been unsure for {(today - entry.since).days} days: {entry.known}"
        for entry in entries
        if today - entry.since > timedelta(days=DAYS)
    ]


class Plugin:
    """The plugin of pytest for one list."""

    def __init__(self, entries: Sequence[Unsure]) -> None:
        self._entries = entries
        # Failure by the name of the test; "" for a test that passed.
        self._outcomes: dict[str, str] = {}

    def _entry(self, nodeid: str) -> Unsure | None:
        return next((entry for entry in self._entries if entry.names(nodeid)), None)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Turn the failure of a test on the list into an expected one."""
        report = yield
        entry = self._entry(item.nodeid)
        if entry is not None and report.failed:
            report.sections.append((WHAT_FAILED, report.longreprtext))
            report.outcome = "skipped"
            report.wasxfail = f"unsure since {entry.since}: {entry.known}"
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._entry(report.nodeid) is None:
            return
        failed = "\n".join(text for name, text in report.sections if name == WHAT_FAILED)
        if failed or (report.when == "call" and report.passed):
            self._outcomes[report.nodeid] = self._outcomes.get(report.nodeid, "") + failed

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for name, failed in sorted(self._outcomes.items()):
            outcome = "failed, which makes nothing red" if failed else "passed"
            terminalreporter.write_line(f"unsure: {name} {outcome}")
            if failed:
                terminalreporter.write_line(failed)


def pytest_configure(config: pytest.Config) -> None:
    if problem := problem_of(LIST, date.today()):
        raise pytest.UsageError(f"tests/support/unsure.py: {problem}")
    config.pluginmanager.register(Plugin(LIST))


def main() -> None:
    for line in overdue(LIST, date.today()):
        print(line)


if __name__ == "__main__":
    main()
