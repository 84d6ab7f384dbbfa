"""The page of complaints against the tests: every row is there once, and names tests that exist."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from tests.support.claims import check_named_tests, numbered_rows
from tests.support.texts import DOCS

PAGE = DOCS / "comparison" / "complaints.rst"
THREAD = r"[\w.-]+/[\w.-]+#\d+(, #\d+)*"
# What is told elsewhere than in a thread.
OTHER_SOURCES = {"20", "84", "109"}


class Row(NamedTuple):
    number: str
    elsewhere: str
    thread: str
    here: str


def rows() -> list[Row]:
    return [Row(*cells) for cells in numbered_rows(PAGE)]


ROWS = [pytest.param(row, id=row.number) for row in rows()]


def test_every_number_is_there_once_and_in_order() -> None:
    assert [row.number for row in rows()] == [str(number) for number in range(1, 112)]


@pytest.mark.parametrize("row", ROWS)
def test_a_row_names_its_source_and_tests_that_exist(row: Row) -> None:
    assert re.search(r"\w", row.elsewhere)
    assert row.number in OTHER_SOURCES or re.fullmatch(rf"{THREAD}(, {THREAD})*", row.thread)
    check_named_tests(row.here)


@pytest.mark.parametrize(
    "row",
    [
        Row("1", "x", "a/b#1", "words only"),
        Row("1", "x", "a/b#1", "``tests/integration/test_complaints.py::test_nothing``"),
        Row("1", "x", "a/b#1", "``tests/integration/test_nowhere.py::test_nothing``"),
        Row("1", "x", "somewhere", "``tests/integration/test_complaints.py::test_a_bad_row``"),
    ],
)
def test_a_bad_row_is_found(row: Row) -> None:
    with pytest.raises(AssertionError):
        test_a_row_names_its_source_and_tests_that_exist(row)


def test_the_front_page_leads_there() -> None:
    assert "comparison/complaints" in (DOCS / "index.rst").read_text(encoding="utf-8")
