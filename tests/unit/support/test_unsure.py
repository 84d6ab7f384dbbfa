"""The list of tests that cannot be made sure: what it may hold, and what a run makes of it."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from tests.support import unsure
from tests.support.pytest_runs import run_pytest
from tests.support.unsure import Unsure, overdue, problem_of

ROOT = Path(__file__).parents[3]
TODAY = date(2026, 11, 26)
ENTRY = Unsure("tests/test_a.py::test_b", date(2026, 11, 20), "the kernel is slow to say so")


def test_an_entry_names_a_test() -> None:
    for entry in unsure.LIST:
        path, _, name = entry.test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text("utf-8")


def test_a_name_covers_its_parameters_and_no_other_test() -> None:
    assert ENTRY.names("tests/test_a.py::test_b")
    assert ENTRY.names("tests/test_a.py::test_b[real]")
    assert not ENTRY.names("tests/test_a.py::test_b_too")
    assert not ENTRY._replace(test="tests/test_a.py::test_b[real]").names("tests/test_a.py::test_b")


def test_entries_that_the_list_may_hold() -> None:
    assert problem_of([], TODAY) == ""
    assert problem_of([ENTRY] * 5, TODAY) == ""
    assert problem_of([ENTRY] * 6, TODAY) == ("6 tests are unsure, 5 may be: make one of them sure")
    assert "which is no day of the past" in problem_of(
        [ENTRY._replace(since=date(2026, 11, 27))], TODAY
    )
    assert "does not say what is known" in problem_of([ENTRY._replace(known=" ")], TODAY)


def test_after_fourteen_days_it_is_told() -> None:
    assert overdue([ENTRY], date(2026, 12, 4)) == []
    assert overdue([ENTRY], date(2026, 12, 5)) == [
        "tests/test_a.py::test_b has been unsure for 15 days: the kernel is slow to say so"
    ]


def run(folder: Path, entries: list[Unsure], *words: str) -> tuple[int, str]:
    """Return the exit code and the output of pytest on three tests, two of which fail."""
    (folder / "conftest.py").write_text(
        "import datetime\n"
        "from tests.support import unsure\n"
        "from tests.support.unsure import Unsure\n"
        f"unsure.LIST = {tuple(entries)!r}\n"
        "pytest_plugins = ['tests.support.unsure']\n"
    )
    (folder / "test_a.py").write_text(
        "import pytest\n"
        "@pytest.fixture\n"
        "def broken():\n    yield\n    raise OSError('a teardown that fails')\n"
        "def test_bad(): assert not 'a broken thing'\n"
        "def test_torn(broken): pass\n"
        "def test_good(): pass\n"
    )
    return run_pytest(folder, *words)


def entry(name: str) -> Unsure:
    return Unsure(f"test_a.py::{name}", date(2026, 11, 20), "a race in the kernel")


def test_a_failure_that_is_not_on_the_list_is_red(tmp_path: Path) -> None:
    code, output = run(tmp_path, [entry("test_torn")])
    assert code == 1
    assert "FAILED test_a.py::test_bad" in output
    assert "1 failed, 2 passed, 1 xfailed" in output


@pytest.mark.parametrize("words", [[], ["-p", "xdist", "-n", "2"]], ids=["alone", "workers"])
def test_a_failure_on_the_list_is_told_and_makes_nothing_red(
    tmp_path: Path, words: list[str]
) -> None:
    listed = [entry("test_bad"), entry("test_torn"), entry("test_good")]
    code, output = run(tmp_path, listed, *words)
    assert code == 0, output
    assert "unsure: test_a.py::test_bad failed, which makes nothing red\n" in output
    assert "assert not 'a broken thing'" in output
    assert "unsure: test_a.py::test_torn failed, which makes nothing red\n" in output
    assert "a teardown that fails" in output
    assert "unsure: test_a.py::test_good passed\n" in output
    assert "2 passed, 2 xfailed" in output


def test_a_sixth_entry_fails_at_once(tmp_path: Path) -> None:
    code, output = run(tmp_path, [entry(f"test_{number}") for number in range(6)])
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "tests/support/unsure.py: 6 tests are unsure, 5 may be: make one of them sure" in output
    assert "passed" not in output
