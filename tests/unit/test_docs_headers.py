"""Pages that turn headers on tell what that changes for other clients, and what to switch first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.texts import DOCS, PAGES, ROOT, code_blocks, name_of

BOX = ".. include:: /guides/headers-first.txt"
TURNS_ON = re.compile(r"headers=True|[\"']headers[\"']: True")
# A program, which others can run, in a page.
EXAMPLE = re.compile(r"\.\. literalinclude:: /(examples/\S+\.py)")
MIGRATIONS = {f"docs/migration/{name}.rst" for name in ("gnsq", "kafka", "pynsq")}


def turns_headers_on(page: Path) -> bool:
    """Return True if a reader who copies the code of the page turns headers of Writers on."""
    text = page.read_text("utf-8")
    blocks = code_blocks(page, "python")
    blocks += [(DOCS / path).read_text("utf-8") for path in EXAMPLE.findall(text)]
    blocks += re.findall(r"\"OPTIONS\": \{[^}]*\}", text)
    return any(map(TURNS_ON.search, blocks)) and page.parent.name != "tutorial"


def test_each_page_that_turns_headers_on_has_the_box() -> None:
    pages = [page for page in PAGES if turns_headers_on(page)]
    assert len(pages) > 5
    without = [name_of(page) for page in pages if BOX not in page.read_text("utf-8")]
    assert without == []


@pytest.mark.parametrize(
    "name", sorted({*MIGRATIONS, "docs/guides/cli.rst", "docs/guides/django.rst"})
)
def test_these_have_it_whatever_they_show(name: str) -> None:
    assert BOX in (ROOT / name).read_text("utf-8")


def test_the_box_says_what_changes_and_the_order() -> None:
    box = (DOCS / "guides/headers-first.txt").read_text("utf-8")
    assert "change the bytes" in box
    assert box.index("consumers first") < box.index("Then switch the publishers")


def test_the_tutorial_leaves_the_bytes_of_its_topic_alone() -> None:
    """Only its handler asks for headers, for its dead letters; no settings do."""
    blocks = [
        block
        for page in sorted((DOCS / "tutorial").glob("*.rst"))
        for block in code_blocks(page, "python")
        if "headers" in block
    ]
    assert blocks
    assert all("headers" not in re.sub(r"@nsq_handler\(.*?\n\)", "", b, flags=re.S) for b in blocks)
