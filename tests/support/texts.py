"""The texts of the project, for the tests of the documentation: pages, code blocks, examples."""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLES = DOCS / "examples"
PAGES = sorted([ROOT / "README.rst", ROOT / "CHANGES.rst", *DOCS.rglob("*.rst")])


def project() -> dict[str, Any]:
    """Return the package's metadata in pyproject.toml: names, dependencies, extras."""
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return found


def name_of(path: Path) -> str:
    """Return the path inside of the project."""
    return str(path.relative_to(ROOT))


def code_blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of one language, without their indentation and options."""
    blocks: list[list[str]] = []
    indent: int | None = None
    for line in page.read_text(encoding="utf-8").splitlines():
        depth = len(line) - len(line.lstrip())
        if indent is not None and line.strip() and depth <= indent:
            indent = None
        if indent is not None:
            blocks[-1].append(line)
        elif line.strip() == f".. code-block:: {language}":
            indent = depth
            blocks.append([])
    return [
        textwrap.dedent("\n".join(line for line in block if not line.lstrip().startswith(":")))
        for block in blocks
    ]


def replaced(text: str, usual_here: Mapping[str, str]) -> str:
    """Replace each usual word of a page by its value here. Each word must occur.

    All words are replaced at once, because a new address may contain another usual one.
    """
    for usual in usual_here:
        assert usual in text, usual
    pattern = "|".join(map(re.escape, usual_here))
    return re.sub(pattern, lambda found: usual_here[found[0]], text)


def files_of(page: Path) -> dict[str, str]:
    """Return the Python blocks with a path as caption: the files of a guide's project."""
    found = {}
    for path, block in re.findall(
        r"^\.\. code-block:: python\n   :caption: (\S+)\n\n((?:(?:   .*)?\n)+)",
        page.read_text(encoding="utf-8"),
        re.MULTILINE,
    ):
        found[path] = textwrap.dedent(block).strip() + "\n"
    return found


def commands_of(page: Path) -> list[str]:
    """Return the lines after a ``$``."""
    return re.findall(r"^   \$ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
