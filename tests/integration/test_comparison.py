"""The feature tables against the tests: what ours claims has a test, and that test exists."""

from __future__ import annotations

import csv
import re
from typing import Any

import pytest

from tests.support.claims import check_test_exists
from tests.support.texts import DOCS

FOLDER = DOCS / "comparison"
TABLES = sorted(FOLDER.glob("*.csv"))
CLIENTS = ["gnsq", "pynsq", "go-nsq", "nsqjs", "nsq-py", "ansq", "asyncnsq"]
VERDICTS = ("yes", "partly", "no")
# Rows whose answer is neither yes nor no.
FACTS = {"Concurrency", "Import name", "Python versions"}


def rows(name: str) -> list[dict[str, str]]:
    """The rows of one table as the page shows them: by the names in its header."""
    with open(FOLDER / name, encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file, delimiter="|", skipinitialspace=True)
    titles = [title.strip() for title in header]
    assert all(len(line) == len(titles) for line in lines), name
    return [dict(zip(titles, map(str.strip, line), strict=True)) for line in lines]


ROWS = [
    pytest.param(row, id=f"{table.stem}-{number}")
    for table in TABLES
    for number, row in enumerate(rows(table.name), 1)
]


def verdict(cell: str) -> str:
    return re.split(r"[^a-z]", cell, maxsplit=1)[0]


def named(row: dict[str, str]) -> list[str]:
    return re.findall(r"``(.+?)``", row["Shown by"])


@pytest.mark.parametrize("row", ROWS)
def test_claims_name_their_tests(row: dict[str, str]) -> None:
    cell = row["gnsqsync"]
    answer = verdict(cell)
    assert answer in VERDICTS or next(iter(row.values())) in FACTS
    if answer == "yes":
        assert named(row), "a yes of ours without a test"
    if answer in ("partly", "no"):
        assert re.search(r"\w", cell.removeprefix(answer)), "what is missing?"


@pytest.mark.parametrize("row", ROWS)
def test_the_tests_exist(row: dict[str, str]) -> None:
    # Nothing but names: what is not in literals would be checked by nobody.
    assert not re.sub(r"``.+?``", "", row["Shown by"]).strip()
    for name in named(row):
        check_test_exists(name)


@pytest.mark.parametrize("table", [table.name for table in TABLES])
def test_columns(table: str) -> None:
    found = rows(table)
    assert found
    for row in found:
        titles = list(row)
        assert titles[1] == "gnsqsync"
        assert [title for title in titles if title in CLIENTS] == CLIENTS
        assert titles[-1] == "Shown by"
        assert all(text for title, text in row.items() if title != "Shown by"), row
    features = [next(iter(row.values())) for row in found]
    assert len(features) == len(set(features))


def test_the_page_shows_every_table() -> None:
    page = (FOLDER / "features.rst").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^   :file: (\S+)$", page, re.M)) == [t.name for t in TABLES]
    assert page.count("   :delim: |\n") == len(TABLES)


def test_an_invented_test_is_found() -> None:
    """The checks above can fail."""
    good: dict[str, Any] = ROWS[0].values[0]
    for bad in (
        {**good, "gnsqsync": "yes", "Shown by": ""},
        {**good, "gnsqsync": "no"},
        {**good, "gnsqsync": "maybe"},
    ):
        with pytest.raises(AssertionError):
            test_claims_name_their_tests(bad)
    for name in (
        "``tests/integration/test_comparison.py::test_nothing``",
        "``tests/integration/test_nowhere.py::test_columns``",
        "``tests/integration/test_comparison.py::verdict``",
        "tests/integration/test_comparison.py::test_columns",
    ):
        with pytest.raises(AssertionError):
            test_the_tests_exist({**good, "Shown by": name})
