"""The page on the findings names each kind with its highest level."""

from __future__ import annotations

import ast

from gnsqsync.cluster import of_channels, of_servers
from tests.support.texts import DOCS


def highest_levels() -> dict[str, str]:
    """Return the highest level that the source gives to each kind of finding."""
    found: dict[str, str] = {}
    for module in (of_servers, of_channels):
        assert module.__file__ is not None
        with open(module.__file__, encoding="utf-8") as file:
            tree = ast.parse(file.read())
        # The variable ``level`` is ERROR or WARNING. ``_about`` has the level last, or none: ERROR.
        for node in ast.walk(tree):
            name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if name in ("Finding", "_about") and isinstance(node.args[0], ast.Constant):
                kind = node.args[0].value
                levels = node.args[1:2] if name == "Finding" else node.args[4:]
                text = ast.unparse(levels[0]) if levels else "level"
                level = next(
                    each
                    for each in ("ERROR", "WARNING", "HINT")
                    if each in ("ERROR" if text == "level" else text)
                )
                found[kind] = min(
                    found.get(kind, level), level, key=("ERROR", "WARNING", "HINT").index
                )
    return found


def test_the_page_has_each_kind_with_its_highest_level() -> None:
    rows = {}
    for line in (DOCS / "guides" / "doctor.rst").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if (
            len(words) > 2
            and words[0].startswith("``")
            and words[1] in ("error", "warning", "hint")
        ):
            rows[words[0].strip("`")] = words[1].upper()
    assert rows == highest_levels()
