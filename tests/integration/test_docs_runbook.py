"""The runbook against the package: each line from WARNING on, and each metric, has a row."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from gnsqsync.admin.cluster_metrics import _CHANNELS, _TOPICS
from tests.support.texts import DOCS, ROOT

PAGE = (DOCS / "guides" / "runbook.rst").read_text(encoding="utf-8")
PACKAGE = ROOT / "gnsqsync"
METHODS = {
    "warning": {"W"},
    "error": {"E"},
    "exception": {"E"},
    "critical": {"E"},
}
LEVELS = {"WARNING": "W", "ERROR": "E", "CRITICAL": "E"}
# Calls whose text is made elsewhere: the module and the text, and what the log shows of it.
MADE_ELSEWHERE = {
    ("embedded/lookup_peer.py", "text"): "failed to query for channels to pre-create",
    ("spark/reach.py", "..."): "part of what waits was not read",
    ("process/hard_limit.py", "..."): "the hard limit is",
    ("writer/dials.py", "..."): "no thread reads from",
}
# The one call that passes on what its callers say; they are looked at instead.
PASSES_ON = "reader/dead_letters.py", "...: {text}"
METRIC = re.compile(r"(?:gnsqsync|nsq)_(?:spark_)?[a-z0-9_]*[a-z0-9]")


class Row(NamedTuple):
    line: str
    levels: frozenset[str]
    cells: list[str]


class Call(NamedTuple):
    """One call of a logger: its module, the text with ``...`` for what varies, its levels."""

    place: str
    module: str
    text: str
    levels: frozenset[str]


def rows() -> list[Row]:
    found = []
    for line in re.findall(r"^   (``.+?`` \| [WE, ]+ \| .+)$", PAGE, re.MULTILINE):
        cells = line.split(" | ")
        levels = frozenset(cells[1].split(", "))
        found.append(Row(cells[0].strip("`"), levels, cells))
    return found


def metric_rows() -> list[list[str]]:
    table = PAGE.split("\nMetrics\n---")[1]
    return [line.split(" | ") for line in re.findall(r"^   (``\w+`` \| .+)$", table, re.MULTILINE)]


def levels_of(node: ast.expr) -> frozenset[str]:
    """Those that an expression such as ``logging.ERROR if x else logging.DEBUG`` may be."""
    names = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    return frozenset(LEVELS[name] for name in names if name in LEVELS)


def shown(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        text = str(node.value)
    elif isinstance(node, ast.JoinedStr):
        text = "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{text}" for part in node.values
        )
    else:
        return ast.unparse(node)
    return re.sub(r"(?:%[-+#0-9.]*[a-z])+", "...", text)


def calls_of(source: str, module: str) -> Iterator[Call]:
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if not node.args:
            continue
        name, of = node.func.attr, ast.unparse(node.func.value)
        place = f"{module}:{node.lineno}"
        is_logger = re.search(r"(?:^|[._])log(?:ger)?$", of) is not None
        if is_logger and name in METHODS:
            yield Call(place, module, shown(node.args[0]), frozenset(METHODS[name]))
        elif (is_logger and name == "log") or (
            (of, name) == ("self", "_log") and len(node.args) > 1
        ):
            levels = levels_of(node.args[0])
            # A variable may be any of them.
            if not levels and isinstance(node.args[0], ast.Name):
                levels = frozenset("W")
            if levels:
                yield Call(place, module, shown(node.args[1]), levels)


# Not while the tests are collected: each worker would parse the whole package for it.
@functools.cache
def calls() -> list[Call]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = str(path.relative_to(PACKAGE))
        found += [
            call
            for call in calls_of(path.read_text(encoding="utf-8"), module)
            if (call.module, call.text) != PASSES_ON
        ]
    return found


def is_about(row: Row, call: Call) -> bool:
    """Words of the line; a text of nothing but what varies has to be the whole."""
    text = MADE_ELSEWHERE.get((call.module, call.text), call.text)
    if not re.search(r"\w{2}", row.line.replace("a Writer", "")):
        return row.line == text
    return re.search(re.escape(row.line).replace(r"\.\.\.", ".*"), text) is not None


def test_each_line_has_a_row() -> None:
    without, of_another_level = [], []
    for call in calls():
        about = [row for row in rows() if is_about(row, call)]
        if not about:
            without.append(f"{call.place}: {call.text!r}")
        elif not any(call.levels <= row.levels for row in about):
            of_another_level.append(f"{call.place}: {call.levels}: {about}")
    assert without == [], "the runbook has no row for them"
    assert of_another_level == []


def test_each_row_is_about_a_line() -> None:
    stale = [row.line for row in rows() if not any(is_about(row, call) for call in calls())]
    assert stale == []


def test_no_row_says_a_level_that_no_call_has() -> None:
    for row in rows():
        about = [call.levels for call in calls() if is_about(row, call)]
        assert row.levels <= frozenset().union(*about), row.line


def test_each_row_says_what_to_do() -> None:
    assert len(rows()) > 90
    for cells in [*(row.cells for row in rows()), *metric_rows()]:
        assert all(cell.strip() for cell in cells) and len(cells) in (3, 4), cells


def test_files_that_other_pages_make_are_there() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    for words in MADE_ELSEWHERE.values():
        assert words in sources, words


def metrics() -> set[str]:
    """The names in the modules that make metrics."""
    found = {f"nsq_topic_{row[0]}" for row in _TOPICS} | {
        f"nsq_channel_{row[0]}" for row in _CHANNELS
    }
    for module in ("prometheus.py", "admin/cluster_metrics.py", "spark/metrics.py"):
        for node in ast.walk(ast.parse((PACKAGE / module).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and METRIC.fullmatch(str(node.value)):
                found.add(str(node.value))
    return found


def test_each_metric_has_a_row_and_no_other() -> None:
    assert {cells[0].strip("`") for cells in metric_rows()} == metrics()


def test_metrics_are_made_in_these_modules_only() -> None:
    makers = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "prometheus_client" in path.read_text(encoding="utf-8")
        and "MetricFamily" in path.read_text(encoding="utf-8")
    }
    assert makers == {"prometheus.py", "admin/cluster_metrics.py", "spark/metrics.py"}


def test_a_call_without_a_row_is_found() -> None:
    source = 'log.warning("%s fell into the sea", name)\nlog.info("all is well")\n'
    (call,) = calls_of(source, "reader/sea.py")
    assert call.text == "... fell into the sea" and call.levels == {"W"}
    assert not any(is_about(row, call) for row in rows())
