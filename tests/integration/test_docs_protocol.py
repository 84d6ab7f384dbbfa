"""The pages of the protocol: what they cite exists, and what cites them finds its section."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.texts import DOCS, ROOT, name_of

PROTOCOL = sorted((DOCS / "protocol").glob("*.rst"))
LABEL = re.compile(r"^\.\. _protocol-([\w-]+):$", re.MULTILINE)
CITATION = re.compile(r"docs/protocol/([\w-]*)(?:#([\w-]*))?")
FORMER = "nsq-" + "reference"


def sections() -> dict[str, list[str]]:
    """Page -> its labels, without ``protocol-``."""
    return {page.stem: LABEL.findall(page.read_text(encoding="utf-8")) for page in PROTOCOL}


def citing() -> Iterator[tuple[str, str]]:
    """Each text of the project that may cite the pages, with its name."""
    files = [*(ROOT / "gnsqsync").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    for path in sorted([*files, *DOCS.rglob("*.rst"), *ROOT.glob("*.rst")]):
        if path != Path(__file__):
            yield name_of(path), path.read_text(encoding="utf-8")


def test_each_label_is_there_once() -> None:
    labels = [label for names in sections().values() for label in names]
    assert sorted(labels) == sorted(set(labels))


@pytest.mark.parametrize("page", PROTOCOL, ids=lambda page: page.stem)
def test_each_section_has_a_label(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    titles = [number - 1 for number, line in enumerate(lines) if re.fullmatch("-{4,}", line)]
    assert titles
    unlabelled = [lines[n] for n in titles if not LABEL.fullmatch(lines[n - 2])]
    assert unlabelled == []


def test_each_citation_names_a_page_and_a_section_that_exist() -> None:
    known = sections()
    found = 0
    wrong = []
    for name, text in citing():
        for match in CITATION.finditer(text):
            found += 1
            page, section = match.groups()
            if page not in known or (section is not None and section not in known[page]):
                wrong.append(f"{name}: {match[0]}")
    assert wrong == []
    assert found > 80


def test_no_citation_has_the_former_form() -> None:
    left = [name for name, text in citing() if FORMER in text]
    assert left == []


def test_each_row_that_is_cited_is_a_conformance_test() -> None:
    tests = "".join(
        path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "tests" / "conformance").glob("test_*.py"))
    )
    rows = set(re.findall(r"^def test_(\d{3})_", tests, re.MULTILINE))
    cited = {
        row for page in PROTOCOL for row in re.findall(r"\bC(\d{3})\b", page.read_text("utf-8"))
    }
    assert cited <= rows
    # Nothing that is tested is left untold: a range names its first and its last row.
    assert len(cited) > 120


def test_the_table_of_rows_is_true() -> None:
    page = (DOCS / "protocol" / "index.rst").read_text(encoding="utf-8")
    table = re.findall(r"^(\d{3}) to (\d{3})\s+``(test_\w+\.py)``", page, re.MULTILINE)
    assert len(table) == 11
    for first, last, file in table:
        text = (ROOT / "tests" / "conformance" / file).read_text(encoding="utf-8")
        rows = sorted(set(re.findall(r"^def test_(\d{3})_", text, re.MULTILINE)))
        assert (rows[0], rows[-1]) == (first, last), file
