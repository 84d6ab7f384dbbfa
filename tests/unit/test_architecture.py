"""Sizes and names of the house: limits, and what exceeds them today. A figure may only fall."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.support.texts import DOCS, ROOT

PACKAGE = ROOT / "gnsqsync"

CLASS_LINES, CLASS_METHODS, FUNCTION_LINES = 400, 25, 60

# Classes and functions beyond the limits, with their sizes.
LARGE_CLASSES = {
    "reader.reader.Reader": 659,
    "writer.writer.Writer": 524,
    "reader.subscription.Subscription": 483,
}
CLASSES_OF_MANY_METHODS = {
    "reader.subscription.Subscription": 43,
    "reader.reader.Reader": 35,
    "embedded.disk.queue.DiskQueue": 30,
    "writer.writer.Writer": 30,
    "embedded.session.Session": 28,
    "embedded.server.NsqdServer": 27,
    "http.clients.NsqdHTTP": 27,
    "embedded.nsqd_http.NsqdHandlers": 26,
    "reader.running_reader.RunningReader": 26,
    "spark.wal.Wal": 26,
}
LONG_FUNCTIONS = {
    "cli.archive.archive": 121,
    "cli.to_file.to_file": 112,
    "spark.jobs.archive.archive": 98,
    "reader.reader.__init__": 98,
    "spark.jobs.replay.replay": 97,
    "reader.workers._handle": 87,
    "django.handlers.nsq_handler": 83,
    "writer.writer.__init__": 81,
    "reader.running_reader.__init__": 80,
    "cli.pub.pub": 70,
    "http.transport.__init__": 66,
    "reader.subscription.__init__": 66,
    "wire.frames.feed": 66,
    "django.schedule.periodic": 65,
    "spark.jobs.rollup.rollup": 61,
}
# Lines by which a figure above may be out of date: it is lowered when the code has shrunk by more.
SLACK = 10

# Names of files that may stand in several rooms, and those that do so today.
COMMON_FILES = {
    "__init__",
    "__main__",
    "0001_initial",
    "admin",
    "apps",
    "commands",
    "models",
    "options",
}
SAME_FILES = {
    "app",
    "archive",
    "batches",
    "bodies",
    "cluster",
    "common",
    "config",
    "dead_letters",
    "eager",
    "envelopes",
    "events",
    "files",
    "handlers",
    "health",
    "latency",
    "names",
    "once",
    "pauses",
    "process",
    "publishing",
    "reach",
    "reader",
    "records",
    "relay",
    "replay",
    "report",
    "rollup",
    "schedule",
    "settings",
    "stats",
    "store",
    "topic",
    "transport",
    "troubles",
    "writer",
}

# Names with an underscore that belong to the standard library, gevent, Django, Flask or PySpark.
FOREIGN_NAMES = {
    "_Compress",
    "_active_limbo_lock",
    "_asdict",
    "_base_manager",
    "_current_frames",
    "_exit",
    "_fields",
    "_get_current_object",
    "_is_owned",
    "_jsc",
    "_jvm",
    "_make",
    "_meta",
    "_replace",
    "_run_exitfuncs",
    "_shutdown",
    "_started",
}
# Private names of another room that a module uses, but for the fields of Message.
REACH_INS: set[str] = set()

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def modules() -> dict[str, ast.Module]:
    """Each module of the package by its name within the package."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): ast.parse(path.read_text())
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def lines_of(node: ast.ClassDef | Function) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def methods_of(node: ast.ClassDef) -> int:
    return sum(isinstance(part, Function) for part in node.body)


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for name, module in modules().items():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                yield f"{name}.{node.name}", node


def functions() -> Iterator[tuple[str, Function]]:
    for name, module in modules().items():
        for node in ast.walk(module):
            if isinstance(node, Function):
                yield f"{name}.{node.name}", node


def wrong(found: Mapping[str, int], limit: int, known: Mapping[str, int], slack: int) -> list[str]:
    """Return what exceeds the limit and its known figure, and the figures that are out of date."""
    told = [
        f"{name} has {size}, and at most {known.get(name, limit)} are allowed"
        for name, size in found.items()
        if size > known.get(name, limit)
    ]
    told += [
        f"{name} has {found.get(name, 0)} by now: lower its figure, {size}"
        for name, size in known.items()
        if found.get(name, 0) <= limit or found[name] < size - slack
    ]
    return told


def test_classes_have_at_most_400_lines() -> None:
    found = {name: lines_of(node) for name, node in classes()}
    assert wrong(found, CLASS_LINES, LARGE_CLASSES, SLACK) == []


def test_classes_have_at_most_25_methods() -> None:
    found = {name: methods_of(node) for name, node in classes()}
    assert wrong(found, CLASS_METHODS, CLASSES_OF_MANY_METHODS, 0) == []


def test_functions_have_at_most_60_lines() -> None:
    found: dict[str, int] = {}
    for name, node in functions():
        found[name] = max(found.get(name, 0), lines_of(node))
    assert wrong(found, FUNCTION_LINES, LONG_FUNCTIONS, SLACK) == []


@pytest.mark.parametrize(
    ("size", "known", "words"),
    [
        (401, {}, "at most 400"),
        (451, {"a.A": 450}, "at most 450"),
        (430, {"a.A": 450}, "lower its figure"),
        (390, {"a.A": 395}, "lower its figure"),
    ],
)
def test_a_size_beyond_its_figure_and_an_old_figure_are_found(
    size: int, known: dict[str, int], words: str
) -> None:
    (told,) = wrong({"a.A": size}, CLASS_LINES, known, SLACK)
    assert words in told


def test_a_size_within_its_figure_is_right() -> None:
    assert wrong({"a.A": 400, "b.B": 445}, CLASS_LINES, {"b.B": 450}, SLACK) == []


def test_files_of_different_rooms_have_different_names() -> None:
    rooms: dict[str, set[Path]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        rooms[path.stem].add(path.parent)
    assert {name for name, places in rooms.items() if len(places) > 1} - COMMON_FILES == SAME_FILES


def attributes() -> dict[str, set[str]]:
    """Return what each class of the package has: methods, fields, and those of its bases."""
    own: dict[str, set[str]] = defaultdict(set)
    bases: dict[str, set[str]] = defaultdict(set)
    for _, node in classes():
        bases[node.name] |= {base.id for base in node.bases if isinstance(base, ast.Name)}
        bases[node.name] |= {
            base.value.id
            for base in node.bases
            if isinstance(base, ast.Subscript) and isinstance(base.value, ast.Name)
        }
        for part in ast.walk(node):
            if isinstance(part, Function | ast.ClassDef):
                own[node.name].add(part.name)
            elif isinstance(part, ast.Attribute):
                own[node.name].add(part.attr)
            elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                own[node.name].add(part.id)
    found: dict[str, set[str]] = {}
    for name in own:
        waiting, seen = [name], set[str]()
        while waiting:
            each = waiting.pop()
            if each not in seen:
                seen.add(each)
                waiting += bases.get(each, ())
        found[name] = set[str]().union(*(own.get(each, set()) for each in seen))
    return found


def private_names(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Yield each private attribute that is named, and True where it is of ``self`` or ``cls``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr):
            is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            yield node.attr, is_own
        elif isinstance(node, Function) and re.match("_[^_]", node.name):
            yield node.name, True
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, True


def reach_ins() -> set[str]:
    """Return ``module: name`` for private attributes that no class of the module's room has."""
    own: dict[str, set[str]] = defaultdict(set)
    for name, tree in modules().items():
        own[name.split(".")[0]] |= {each for each, is_own in private_names(tree) if is_own}
    of_message = {each for each, is_own in private_names(modules()["message"]) if is_own}
    return {
        f"{name}: {each}"
        for name, tree in modules().items()
        for each, is_own in private_names(tree)
        if not is_own and each not in own[name.split(".")[0]] | of_message | FOREIGN_NAMES
    }


def test_private_names_are_used_in_their_room() -> None:
    assert reach_ins() == REACH_INS


def test_names_that_the_pages_on_design_quote_exist() -> None:
    known = attributes()
    missing = [
        f"{page.name}: {owner}.{attribute}"
        for page in sorted((DOCS / "design").glob("*.rst"))
        for owner, attribute in re.findall(
            r"``([A-Z]\w+)\.(\w+)(?:\(\))?``", page.read_text(encoding="utf-8")
        )
        if owner in known and attribute not in known[owner]
    ]
    assert missing == []
