"""Points between the lines of modules whose correctness hangs on their locks.

A finder compiles these modules with a question before each statement: is the thread interrupted
here? The statements are those of the file. The same finder can put a fault into a module: a text of
the source replaced by another one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import repeat
from types import CodeType, ModuleType
from typing import Any, NamedTuple

__all__ = ["INTERRUPTED", "Change", "install", "use"]

# In these a thread may be interrupted between any two statements.
INTERRUPTED = (
    "gnsqsync.connection.answer_queue",
    "gnsqsync.connection.in_flight",
    "gnsqsync.connection.link",
    "gnsqsync.connection.messages",
    "gnsqsync.connection.publish_queue",
    "gnsqsync.connection.publish_replies",
    "gnsqsync.connection.publish_slot",
    "gnsqsync.connection.publishes",
    "gnsqsync.connection.publishing",
    "gnsqsync.connection.read_turn",
    "gnsqsync.connection.send_queue",
    "gnsqsync.connection.subscribed",
    "gnsqsync.discovery.shared_poll",
    "gnsqsync.policy.backoff",
    "gnsqsync.policy.writer_nodes",
    "gnsqsync.policy.nodes",
    "gnsqsync.policy.rdy",
    "gnsqsync.reader.chunks",
    "gnsqsync.reader.failures",
    "gnsqsync.reader.housekeeping",
    "gnsqsync.reader.rdy_control",
    "gnsqsync.reader.subscription",
    "gnsqsync.reader.workers",
    "gnsqsync.runtime.timer",
    "gnsqsync.writer.connection_table",
    "gnsqsync.writer.dials",
    "gnsqsync.writer.nsqd_pool",
)
_STRIKES, _INTERRUPT = "__simulated_strikes__", "__simulated_interrupt__"
# Global names of each module that is compiled with points. A module that is imported later gets the
# same ones. Before a history begins, nobody is interrupted.
_names: dict[str, Any] = {_STRIKES: repeat(False).__next__, _INTERRUPT: None}
_modules: list[ModuleType] = []


class Change(NamedTuple):
    """A fault: in ``module`` the text ``old``, which is there once, becomes ``new``."""

    module: str
    old: str
    new: str


def use(strikes: Callable[[], bool], interrupt: Callable[[int], None]) -> None:
    """Ask ``strikes`` before each statement from now on; if True, call ``interrupt`` with its line.

    A history passes millions of points: ``strikes`` should be a function written in C.
    """
    _names.update({_STRIKES: strikes, _INTERRUPT: interrupt})
    for module in _modules:
        module.__dict__.update(_names)


def install(changes: Iterable[Change] = ()) -> None:
    """Compile such modules so from now on. AssertionError if one is imported already."""
    by_module: dict[str, list[Change]] = {}
    for change in changes:
        by_module.setdefault(change.module, []).append(change)
    there = [name for name in (*INTERRUPTED, *by_module) if name in sys.modules]
    assert not there, f"imported before: {there}"
    sys.meta_path.insert(0, _Finder(by_module))


class _Finder(MetaPathFinder):
    def __init__(self, changes: dict[str, list[Change]]) -> None:
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
            fullname in INTERRUPTED,
            self._changes.get(fullname, []),
        )
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, has_points: bool, changes: list[Change]) -> None:
        super().__init__(name, path)
        self._has_points = has_points
        self._changes = changes

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        for change in self._changes:
            count = source.count(change.old)
            assert count == 1, f"{change.old!r} is {count} times in {fullname}"
            source = source.replace(change.old, change.new)
        tree = ast.parse(source, self.path)
        if self._has_points:
            tree = ast.fix_missing_locations(_Points(INTERRUPTED.index(fullname)).visit(tree))
        return compile(tree, self.path, "exec")

    def exec_module(self, module: ModuleType) -> None:
        if self._has_points:
            _modules.append(module)
            module.__dict__.update(_names)
        super().exec_module(module)


class _Points(ast.NodeTransformer):
    """Puts the question before each statement of each function."""

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
                asks = ast.Call(ast.Name(_STRIKES, ast.Load()), [], [])
                call = ast.Expr(ast.Call(ast.Name(_INTERRUPT, ast.Load()), [place], []))
                result.append(ast.copy_location(ast.If(asks, [call], []), statement))
            result.append(statement)
        return result
