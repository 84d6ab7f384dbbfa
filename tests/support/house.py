"""The package as rooms: which folder imports which, read from the source. Runs none of it.

``python -m tests.support.house`` draws docs/design/floors.svg anew, light and dark. Knows text and
files only.
"""

from __future__ import annotations

import ast
import functools
import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.support.texts import ROOT

PACKAGE = ROOT / "gnsqsync"
# Each picture, and its colours: of arrows, a room, its edge, its name, its lines.
_FOLDER = ROOT / "docs" / "design"
PICTURES = {
    _FOLDER / "floors.svg": ("#5b6b7a", "#e9f1f8", "#30506b", "#10202e", "#33414d"),
    _FOLDER / "floors-dark.svg": ("#8d9aa6", "#1d2a36", "#7fa3c2", "#e6edf3", "#b8c4ce"),
}

# The flat modules are one room: what a user imports, and what everybody may know.
GROUND = "ground"
# Two flat modules are above all others: they load the public names and the command line.
_ABOVE_ALL = {"gnsqsync", "gnsqsync.__main__"}


class Import(NamedTuple):
    """One import: what is imported, by which line, and whether for types only."""

    target: str
    line: int
    types_only: bool


@functools.cache
def sources() -> dict[str, str]:
    """Return the source of every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text()
    return found


# The tests ask for the same sources again and again, and parsing them takes a second.
@functools.cache
def _statements(source: str) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Return all imports of a source, each with True if it is for types only."""
    found: list[tuple[ast.Import | ast.ImportFrom, bool]] = []

    def walk(block: Iterable[ast.AST], types_only: bool) -> None:
        # Expressions import nothing, so only blocks of statements are looked through.
        for child in block:
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                found.append((child, types_only))
            elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                walk(child.body, True)
                walk(child.orelse, types_only)
            else:
                for name in ("body", "handlers", "cases", "orelse", "finalbody"):
                    walk(getattr(child, name, ()), types_only)

    walk(ast.parse(source).body, False)
    return found


def imports(name: str, source: str, modules: Iterable[str]) -> Iterator[Import]:
    """Yield all imports of a module, those inside functions too."""
    known = modules if isinstance(modules, Mapping) else set(modules)
    for node, types_only in _statements(source):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, types_only)
            continue
        assert node.level == 0, f"{name}:{node.lineno}: a relative import"
        assert node.module is not None
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            target = whole if whole in known else node.module
            yield Import(target, node.lineno, types_only)


def room_of(name: str, rooms: Iterable[str]) -> str:
    """The folder below gnsqsync that a module is in; GROUND for the flat ones."""
    words = name.split(".")
    return words[1] if len(words) > 1 and words[1] in rooms else GROUND


def module_graph(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """Which module of the package imports which, for types too, but not the public names."""
    return {
        name: {
            what.target
            for what in imports(name, source, modules)
            if what.target in modules and what.target not in (name, "gnsqsync")
        }
        for name, source in modules.items()
        if name != "gnsqsync"
    }


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other, the nodes of each in order."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            for target in graph.get(waiting.pop(), ()):
                if target not in found:
                    found.add(target)
                    waiting.append(target)
        return found

    reach = {name: reached(name) for name in graph}
    groups = {
        tuple(sorted(other for other in reach[name] if name in reach.get(other, ())))
        for name in graph
        if name in reach[name]
    }
    return [list(group) for group in sorted(groups)]


def room_graph(modules: Mapping[str, str], rooms: Iterable[str]) -> dict[str, set[str]]:
    """Which room imports from which other one, for types too.

    Who imports the public names knows the reader, and with it all that these stand on.
    """
    rooms = set(rooms)
    graph: dict[str, set[str]] = {room: set() for room in rooms | {GROUND}}
    for name, source in modules.items():
        here = room_of(name, rooms)
        for what in imports(name, source, modules):
            if what.target == "gnsqsync" and here != GROUND:
                graph[here] |= {"reader"} & rooms
            elif what.target in modules and name not in _ABOVE_ALL:
                graph[here] |= {room_of(what.target, rooms)}
        graph[here] -= {here}
    return graph


def levels(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """How many rooms lie below each, counted along the longest way; 0 knows nobody."""
    found: dict[str, int] = {}

    def level(room: str) -> int:
        if room not in found:
            found[room] = 1 + max((level(other) for other in graph[room]), default=-1)
        return found[room]

    for room in graph:
        level(room)
    return found


def direct(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Without the arrows that a way over other rooms implies."""

    def below(room: str) -> set[str]:
        found = set(graph[room])
        for other in graph[room]:
            found |= below(other)
        return found

    return {
        room: {
            target
            for target in targets
            if not any(target in below(other) for other in targets - {target})
        }
        for room, targets in graph.items()
    }


# -- the picture -----------------------------------------------------------------------------------

_WIDE, _HIGH, _GAP_X, _GAP_Y, _EDGE = 150, 50, 24, 44, 20


def picture(graph: Mapping[str, set[str]], lines: Mapping[str, int], colours: Sequence[str]) -> str:
    """An SVG: rooms by level, the top one first, and an arrow to each room known directly."""
    arrow, room_colour, edge, name_colour, lines_colour = colours
    by_level: dict[int, list[str]] = {}
    for room, level in sorted(levels(graph).items()):
        by_level.setdefault(level, []).append(room)
    widest = max(map(len, by_level.values()))
    width = 2 * _EDGE + widest * _WIDE + (widest - 1) * _GAP_X
    height = 2 * _EDGE + len(by_level) * _HIGH + (len(by_level) - 1) * _GAP_Y
    places: dict[str, tuple[float, float]] = {}
    for level, rooms in by_level.items():
        row = len(rooms) * _WIDE + (len(rooms) - 1) * _GAP_X
        for number, room in enumerate(rooms):
            x = (width - row) / 2 + number * (_WIDE + _GAP_X)
            y = _EDGE + (len(by_level) - 1 - level) * (_HIGH + _GAP_Y)
            places[room] = x, y
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        ' role="img" font-family="sans-serif" font-size="14">',
        "<title>The rooms of gnsqsync; an arrow goes to a room that is imported</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
        ' markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"'
        f' fill="{arrow}"/></marker></defs>',
    ]
    for room, targets in sorted(direct(graph).items()):
        for target in sorted(targets):
            (x1, y1), (x2, y2) = places[room], places[target]
            start, end = (x1 + _WIDE / 2, y1 + _HIGH), (x2 + _WIDE / 2, y2)
            middle = (start[1] + end[1]) / 2
            parts.append(
                f'<path d="M{start[0]:g} {start[1]:g}C{start[0]:g} {middle:g}'
                f' {end[0]:g} {middle:g} {end[0]:g} {end[1]:g}"'
                f' fill="none" stroke="{arrow}" stroke-width="1.3" marker-end="url(#tip)"/>'
            )
    for room, (x, y) in sorted(places.items()):
        parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{_WIDE}" height="{_HIGH}" rx="6"'
            f' fill="{room_colour}" stroke="{edge}"/>'
            f'<text x="{x + _WIDE / 2:g}" y="{y + 22:g}" text-anchor="middle"'
            f' fill="{name_colour}" font-weight="bold">{html.escape(room)}</text>'
            f'<text x="{x + _WIDE / 2:g}" y="{y + 40:g}" text-anchor="middle"'
            f' fill="{lines_colour}" font-size="12">{lines[room]} lines</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def rooms_of(modules: Iterable[str]) -> set[str]:
    """The folders of the package: rooms with more than flat modules in them."""
    return {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}


def draw(colours: Sequence[str]) -> str:
    """The picture of the package as it stands. Lines are rounded, so that few edits change it."""
    modules = sources()
    rooms = rooms_of(modules)
    lines = dict.fromkeys(rooms | {GROUND}, 0)
    for name, source in modules.items():
        lines[room_of(name, rooms)] += source.count("\n")
    rounded = {room: round(count, -2) or 100 for room, count in lines.items()}
    return picture(room_graph(modules, rooms), rounded, colours)


def main() -> None:
    for path, colours in PICTURES.items():
        path.write_text(draw(colours))
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
