"""The page of promises against the tests: every promise names tests that exist."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from tests.chaos.scenarios import SCENARIOS
from tests.support.claims import check_named_tests, check_test_exists, numbered_rows
from tests.support.texts import DOCS

PAGE = DOCS / "guides" / "promises.rst"


class Row(NamedTuple):
    number: str
    promise: str
    faults: str
    shown_by: str


def rows() -> list[Row]:
    return [Row(*cells) for cells in numbered_rows(PAGE)]


ROWS = [pytest.param(row, id=row.number) for row in rows()]


def test_every_number_is_there_once_and_in_order() -> None:
    assert len(ROWS) > 20
    assert [row.number for row in rows()] == [str(number) for number in range(1, len(ROWS) + 1)]


@pytest.mark.parametrize("row", ROWS)
def test_a_promise_names_tests_that_exist(row: Row) -> None:
    assert re.search(r"\w", row.promise)
    assert re.search(r"\w", row.faults)
    check_named_tests(row.shown_by)


def test_tests_that_are_named_below_the_tables_exist() -> None:
    below = PAGE.read_text(encoding="utf-8").partition(".. _nobody-can-promise:")[2]
    names = re.findall(r"``(tests/[^`]+::[^`]+)``", below)
    assert names
    for name in names:
        check_test_exists(name)


@pytest.mark.parametrize(
    "shown_by", ["words only", "``tests/integration/test_promises.py::test_nothing``"]
)
def test_a_bad_promise_is_found(shown_by: str) -> None:
    with pytest.raises(AssertionError):
        test_a_promise_names_tests_that_exist(Row("1", "x", "y", shown_by))


def test_the_scenarios_that_the_page_names_exist() -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = re.findall(r"--scenario (\S+)", text)
    assert names
    assert set(names) <= SCENARIOS.keys()


def test_every_scenario_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"^   ``([\w-]+)`` \| (.+)$", text, re.MULTILINE)
    assert found == [(scenario.name, scenario.about) for scenario in SCENARIOS.values()]


def test_the_guides_lead_there() -> None:
    assert "promises" in (DOCS / "guides" / "index.rst").read_text(encoding="utf-8").split()
