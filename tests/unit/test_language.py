"""The language of docstrings, comments and pages: openings and phrases that need a second reading.

A word list cannot judge a sentence. It keeps away two habits over which readers stumble: a sentence
that opens with a pronoun or a relative word, and a quantity without its unit.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.texts import DOCS, ROOT, name_of

# fmt: off
OPENINGS = frozenset((
    "what", "whether", "how", "as", "of", "those", "it", "its", "one", "that", "they", "these",
    "for", "where", "which", "whose", "until", "from", "by", "also", "all", "none",
))
# fmt: on
PHRASES = re.compile(
    r"\b(?:so\s+many|so\s+long|so\s+much|nor\s+is\s+one|is\s+none\s+of|that\s+of\s+it)\b",
    re.IGNORECASE,
)
# Names of tests that open with a relative word or a pronoun.
RIDDLES = re.compile(
    r"^ *(?:async )?def (test_(?:what|how|whether|which|whose|that|its?|as|those|of)_\w+)",
    re.MULTILINE,
)
# Percent of docstrings, of comment blocks and of paragraphs of the pages that may open so. One
# opening is free in each room.
LIMIT = 3.0
# Comments for tools, which nobody reads as a sentence.
DIRECTIVES = re.compile(r"#[:!]?\s*(?:noqa|type:|pragma|fmt:|nosec|mypy:|ruff:)")

# Rooms that are not there yet: percent of docstrings, percent of comment blocks, number of phrases.
# The figures only fall: a figure that is more than one above the count fails, too.
HIGHER: dict[str, tuple[float, float, int]] = {}


@dataclasses.dataclass(frozen=True)
class Text:
    """A docstring, a block of comments, or a paragraph of a page."""

    place: str
    text: str

    @property
    def opening(self) -> str | None:
        """The first word, if a sentence must not open with it."""
        word = re.match(r"\W*(\w+)", self.text)
        return word[1] if word and word[1].lower() in OPENINGS else None

    @property
    def phrases(self) -> list[str]:
        """Each phrase that the text must not contain."""
        return PHRASES.findall(self.text)


@dataclasses.dataclass
class Room:
    """The docstrings and comment blocks of a package, or of the tests' support."""

    name: str
    docstrings: list[Text] = dataclasses.field(default_factory=list)
    comments: list[Text] = dataclasses.field(default_factory=list)

    def counted(self) -> tuple[float, float, int]:
        """Return the percent of docstrings and of comment blocks, and the number of phrases."""
        return _percent(self.docstrings), _percent(self.comments), len(self.phrases())

    def phrases(self) -> list[str]:
        """Return place and phrase of each text that contains one."""
        return [
            f"{text.place}: {phrase}"
            for text in [*self.docstrings, *self.comments]
            for phrase in text.phrases
        ]

    def above(self) -> tuple[float, list[str]]:
        """Return the highest percent above its limit, and the openings behind it; or 0 and []."""
        higher = HIGHER.get(self.name, (LIMIT, LIMIT, 0))
        worst, lines = 0.0, []
        for kind, texts, limit in (
            ("docstrings", self.docstrings, higher[0]),
            ("comment blocks", self.comments, higher[1]),
        ):
            opened = [text for text in texts if text.opening]
            percent = _percent(texts)
            if len(opened) > 1 and percent > limit:
                worst = max(worst, percent)
                lines.append(
                    f"{self.name}: {percent} % of {len(texts)} {kind}, the limit is {limit} %"
                )
                lines += [f"  {text.place}: {text.opening}" for text in opened]
        return worst, lines


def _percent(texts: list[Text]) -> float:
    return round(100 * sum(1 for text in texts if text.opening) / max(1, len(texts)), 1)


def texts_of(source: str, name: str) -> tuple[list[Text], list[Text]]:
    """Return the docstrings and the comment blocks of a module.

    A comment block is lines of comments without a line of code between them. The tree says where
    strings are, because ``tokenize`` would take longer than the whole test.
    """
    lines = source.splitlines()
    docstrings = []
    strings: dict[int, list[tuple[int, int]]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text:
                docstrings.append(Text(f"{name}:{node.body[0].lineno}", text))
        elif isinstance(node, ast.JoinedStr | ast.Constant) and isinstance(
            getattr(node, "value", ""), str | bytes
        ):
            last = node.end_lineno or node.lineno
            for number in range(node.lineno, last + 1):
                start = node.col_offset if number == node.lineno else 0
                end = (node.end_col_offset or 0) if number == last else sys.maxsize
                strings.setdefault(number, []).append((start, end))
    return docstrings, _comments_of(lines, strings, name)


def _comments_of(
    lines: list[str], strings: Mapping[int, Sequence[tuple[int, int]]], name: str
) -> list[Text]:
    comments: list[Text] = []
    continues = False
    for number, line in enumerate(lines, 1):
        start = _comment_in(line, strings.get(number, ()))
        if start is None or DIRECTIVES.match(line[start:]):
            continues = False
            continue
        text = line[start:].lstrip("#: ")
        is_alone = not line[:start].strip()
        if continues and is_alone:
            text = f"{comments[-1].text}\n{text}"
            comments[-1] = Text(comments[-1].place, text)
        else:
            comments.append(Text(f"{name}:{number}", text))
        continues = is_alone
    return comments


def _comment_in(line: str, strings: Sequence[tuple[int, int]]) -> int | None:
    """Return where the comment of a line begins: at the first ``#`` outside of its strings."""
    for found in re.finditer("#", line):
        at = len(line[: found.start()].encode())
        if not any(start <= at < end for start, end in strings):
            return found.start()
    return None


@functools.cache
def rooms() -> dict[str, Room]:
    """Read each room once."""
    found = {"all": Room("all")}
    package, support = ROOT / "gnsqsync", ROOT / "tests/support"
    for path in sorted([*package.rglob("*.py"), *support.rglob("*.py")]):
        inside = path.is_relative_to(package)
        parts = path.relative_to(package).parts if inside else ()
        name = "tests/support" if not inside else parts[0] if len(parts) > 1 else "gnsqsync"
        docstrings, comments = texts_of(path.read_text(encoding="utf-8"), name_of(path))
        for room in (found.setdefault(name, Room(name)), found["all"]):
            room.docstrings += docstrings
            room.comments += comments
    return found


# Directives whose body is prose of the page.
BOXES = re.compile(r"\.\. (?:note|warning|tip|important|seealso|admonition)::")
DIRECTIVE = re.compile(r"\.\. (?:[\w:-]+::|_)")
ITEM = re.compile(r"(?:\* |- |#\. |\d+\. )")
RULE_OF_TABLE = re.compile(r"=+(?: +=+)+")
UNDERLINE = re.compile(r"([=\-~^.])\1{2,}")


def paragraphs_of_page(page: Path) -> list[Text]:
    """Return paragraphs and list items. Tables, headings, code and other directives have none."""
    lines = [*page.read_text(encoding="utf-8").splitlines(), "", ""]
    name = name_of(page) if page.is_relative_to(ROOT) else page.name
    found: list[Text] = []
    skipped: int | None = None
    in_table = goes_on = False
    for number, (line, after) in enumerate(itertools.pairwise(lines), 1):
        words, depth = line.strip(), len(line) - len(line.lstrip())
        if skipped is not None and words and depth <= skipped:
            skipped = None
        if skipped is None and RULE_OF_TABLE.fullmatch(words):
            in_table = not (in_table and not after.strip())
        elif skipped is None and DIRECTIVE.match(words) and not BOXES.match(words):
            skipped = depth
        elif skipped is None and not in_table and _is_prose(words, after):
            item = ITEM.match(words)
            if goes_on and not item:
                found[-1] = Text(found[-1].place, f"{found[-1].text}\n{words}")
            else:
                found.append(Text(f"{name}:{number}", words[item.end() if item else 0 :]))
            goes_on = not words.endswith("::")
            skipped = None if goes_on else depth
            continue
        goes_on = False
    return found


def _is_prose(words: str, after: str) -> bool:
    return not (
        not words
        or words.startswith((":", ".. "))
        or UNDERLINE.fullmatch(words)
        or UNDERLINE.fullmatch(after.strip())
    )


def phrases_of_page(page: Path) -> list[str]:
    """Return place and phrase, outside of code blocks and of the directives' options."""
    prose = []
    indent: int | None = None
    for line in page.read_text(encoding="utf-8").splitlines():
        depth = len(line) - len(line.lstrip())
        if indent is not None and line.strip() and depth <= indent:
            indent = None
        if indent is None and re.match(
            r"\s*\.\. (code-block|literalinclude|graphviz)::|(?!\s*\.\. ).*::$", line
        ):
            indent = depth
        prose.append("" if indent is not None else re.sub(r"``[^`]*``", "", line))
    text = "\n".join(prose)
    name = name_of(page) if page.is_relative_to(ROOT) else page.name
    found = []
    for match in PHRASES.finditer(text):
        number = text.count("\n", 0, match.start()) + 1
        found.append(f"{name}:{number}: {' '.join(match[0].split())}")
    return found


def test_sentences_open_with_a_noun_or_a_verb() -> None:
    failures = sorted((room.above() for room in rooms().values()), key=lambda failure: -failure[0])
    assert not any(lines for _, lines in failures), "\n".join(
        ["Open with a noun or a verb:", *(line for _, lines in failures for line in lines)]
    )


def test_no_text_has_a_phrase_that_hides_a_quantity() -> None:
    found = [
        phrase
        for room in rooms().values()
        if len(room.phrases()) > HIGHER.get(room.name, (0, 0, 0))[2]
        for phrase in room.phrases()
    ]
    assert not found, "\n".join(["Name the unit, or repeat the noun:", *found])


def test_no_page_has_a_phrase_that_hides_a_quantity() -> None:
    found = [phrase for page in DOCS.rglob("*.rst") for phrase in phrases_of_page(page)]
    assert not found, "\n".join(["Name the unit, or repeat the noun:", *found])


def test_paragraphs_of_pages_open_with_a_noun_or_a_verb() -> None:
    texts = [text for page in DOCS.rglob("*.rst") for text in paragraphs_of_page(page)]
    assert len(texts) > 1000
    opened = sorted(f"{text.place}: {text.opening}" for text in texts if text.opening)
    assert _percent(texts) <= LIMIT, "\n".join(["Open with a noun or a verb:", *opened])


def test_names_of_tests_open_with_a_noun_or_a_verb() -> None:
    found = [
        f"{name_of(path)}: {name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in RIDDLES.findall(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(["Say what the test holds, its noun first:", *found])


def test_the_higher_limits_only_fall() -> None:
    assert set(HIGHER) <= set(rooms()), "a room that is gone"
    lower = [
        f'    "{room.name}": {counted},'
        for room in rooms().values()
        if (counted := room.counted())
        and any(
            limit > (max(figure + 1, floor))
            for limit, figure, floor in zip(
                HIGHER.get(room.name, (0, 0, 0)), counted, (LIMIT, LIMIT, 0), strict=True
            )
        )
    ]
    assert not lower, "\n".join(["HIGHER may fall to:", *lower])


@pytest.mark.parametrize(
    ("source", "opening"),
    [
        ('"""Whether it is open."""', "Whether"),
        ('"""True if it is open."""', None),
        ('class A:\n    """``Of`` one."""', "Of"),
        ("async def a():\n    '''That of it.'''", "That"),
        ("# As of Reader.", "As"),
        ("a = 1  # of one", "of"),
        ("#: Whose it is.\na = 1", "Whose"),
        ("# The lock guards\n# all of it.", None),
        ("a = 1  # The lock.\n# All of it.", "All"),
        ("# The lock.\n\n# All of it.", "All"),
        ("a = '# All of it.'", None),
        ("a = f'# All {1}'", None),
        ('a = """\n# All of it.\n"""', None),
        ("# noqa: E501\n# All of it.", "All"),
        ("a = 'ü'  # All of it.", "All"),
    ],
)
def test_openings_are_found(source: str, opening: str | None) -> None:
    docstrings, comments = texts_of(source, "a.py")
    assert [text.opening for text in [*docstrings, *comments] if text.opening] == [opening][
        : opening is not None
    ]


def test_phrases_are_found_over_the_end_of_a_line() -> None:
    assert Text("a.py:1", "Wait for so\nmany messages.").phrases == ["so\nmany"]
    assert Text("a.py:1", "Wait for that of items.").phrases == []


def test_phrases_in_the_code_blocks_of_a_page_are_left_out(tmp_path: Path) -> None:
    page = tmp_path / "page.rst"
    page.write_text(
        "``so many`` and so\nmuch\n\n.. code-block:: python\n\n    # so long\n\nso long\n", "utf-8"
    )
    assert [text.partition(":")[2] for text in phrases_of_page(page)] == [
        "1: so much",
        "8: so long",
    ]


def test_paragraphs_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.rst"
    page.write_text(
        """Of a title
==========

What it is,
also here.

* One item
  of a list
* Another

.. note::

   All of it.

.. code-block:: python

   # One comment

=====  ====
What   How
=====  ====
All    None

As     Also
=====  ====

Until then::

    One line

.. list-table::

   * - What
     - Which
""",
        "utf-8",
    )
    assert [(text.place, text.text) for text in paragraphs_of_page(page)] == [
        ("page.rst:4", "What it is,\nalso here."),
        ("page.rst:7", "One item\nof a list"),
        ("page.rst:9", "Another"),
        ("page.rst:13", "All of it."),
        ("page.rst:27", "Until then::"),
    ]
