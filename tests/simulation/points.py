"""Points between the lines of modules whose correctness hangs on their locks.

A finder compiles these modules with a call before each statement, at which the scheduler may
interrupt a thread. The statements are those of the file. The same finder can put a fault into a
module: a text of the source replaced by another one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, NamedTuple

__all__ = ["INTERRUPTED", "Change", "install"]

# In these a thread may be interrupted between any two statements.
INTERRUPTED = (
    "gnsqsync.connection.connection",
    "gnsqsync.connection.in_flight",
    "gnsqsync.connection.messages",
    "gnsqsync.connection.publish_replies",
    "gnsqsync.connection.publishes",
    "gnsqsync.connection.read_turn",
    "gnsqsync.connection.send_queue",
    "gnsqsync.discovery.shared_poll",
    "gnsqsync.policy.backoff",
    "gnsqsync.policy.writer_nodes",
    "gnsqsync.policy.nodes",
    "gnsqsync.policy.rdy",
    "gnsqsync.reader.chunks",
    "gnsqsync.reader.housekeeping",
    "gnsqsync.reader.rdy_control",
    "gnsqsync.reader.subscription",
    "gnsqsync.reader.workers",
    "gnsqsync.runtime.timer",
    "gnsqsync.writer.dials",
    "gnsqsync.writer.nsqd_pool",
)
_NAME = "__simulated_point__"


class Change(NamedTuple):
    """A fault: in ``module`` the text ``old``, which is there once, becomes ``new``."""

    module: str
    old: str
    new: str


def install(point: Callable[[int], None], changes: Iterable[Change] = ()) -> None:
    """From now on such modules are imported so. AssertionError when one is there already."""
    by_module: dict[str, list[Change]] = {}
    for change in changes:
        by_module.setdefault(change.module, []).append(change)
    there = [name for name in (*INTERRUPTED, *by_module) if name in sys.modules]
    assert not there, f"imported before: {there}"
    sys.meta_path.insert(0, _Finder(point, by_module))


class _Finder(MetaPathFinder):
    def __init__(self, point: Callable[[int], None], changes: dict[str, list[Change]]) -> None:
        self._point = point
        self._changes = changes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in INTERRUPTED and fullname not in self._changes:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None and spec.origin is not None
        spec.loader = _Loader(
            fullname,
            spec.origin,
            self._point if fullname in INTERRUPTED else None,
            self._changes.get(fullname, []),
        )
        return spec


class _Loader(SourceFileLoader):
    def __init__(
        self, name: str, path: str, point: Callable[[int], None] | None, changes: list[Change]
    ) -> None:
        super().__init__(name, path)
        self._point = point
        self._changes = changes

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        for change in self._changes:
            count = source.count(change.old)
            assert count == 1, f"{change.old!r} is {count} times in {fullname}"
            source = source.replace(change.old, change.new)
        tree = ast.parse(source, self.path)
        if self._point is not None:
            tree = ast.fix_missing_locations(_Points(INTERRUPTED.index(fullname)).visit(tree))
        return compile(tree, self.path, "exec")

    def exec_module(self, module: ModuleType) -> None:
        if self._point is not None:
            module.__dict__[_NAME] = self._point
        super().exec_module(module)


class _Points(ast.NodeTransformer):
    """Puts a call before each statement of each function; it is told which line that is."""

    def __init__(self, module: int) -> None:
        self._first = module * 10_000
        self._in_function = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        self._in_function += 1
        self.generic_visit(node)
        self._in_function -= 1
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if not self._in_function or isinstance(node, (ast.ClassDef, ast.Lambda)):
            return node
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list) and statements and isinstance(statements[0], ast.stmt):
                setattr(node, field, self._with_points(statements))
        return node

    def _with_points(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in statements:
            if not isinstance(statement, (ast.Global, ast.Nonlocal, ast.Pass)):
                place = ast.Constant(self._first + statement.lineno)
                call = ast.Expr(ast.Call(ast.Name(_NAME, ast.Load()), [place], []))
                result.append(ast.copy_location(call, statement))
            result.append(statement)
        return result
