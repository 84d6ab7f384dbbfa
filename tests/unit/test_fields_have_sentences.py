"""Sentences about fields: each guarded field, each flag and each constant says what it means.

A sentence is a comment above the line or at its end, a comment above a group of lines that names
the field, or a docstring of the class or of ``__init__`` that names it. No test can judge if the
sentence is true.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.texts import ROOT, name_of

ROOMS = (
    "connection",
    "reader",
    "writer",
    "policy",
    "runtime",
    "discovery",
    "wire",
    "outbox",
    "process",
    "cluster",
)
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
# Names of fields that hold a lock.
LOCK = re.compile(r"_?(?:\w+_)?(?:lock|mutex)")
# Methods that change the object on which they are called.
CHANGES = re.compile(
    "add|append|appendleft|clear|discard|extend|insert|pop|popitem|popleft|remove|reverse"
    "|setdefault|sort|update"
)
# Fields without a sentence, as ``module:name``. The list only shrinks.
WITHOUT: frozenset[str] = frozenset()


def left_out(source: str) -> list[str]:
    """Return the names that a module's source leaves without a sentence."""
    lines = source.splitlines()
    tree = ast.parse(source)
    found = []
    for statement in tree.body:
        name = _assigned(statement)
        if (
            name
            and CONSTANT.fullmatch(name)
            and not _is_type_variable(statement)
            and not _is_told(name, statement, tree.body, lines)
        ):
            found.append(name)
    for node in ast.walk(tree):
        # A TypedDict repeats keywords that the class which takes them documents.
        if isinstance(node, ast.ClassDef) and not any(k.arg == "total" for k in node.keywords):
            found += _fields_without(node, lines)
    return found


def _fields_without(node: ast.ClassDef, lines: list[str]) -> Iterator[str]:
    guarded = set(_guarded(node))
    told = " ".join(
        ast.get_docstring(holder) or ""
        for holder in (node, *node.body)
        if isinstance(holder, ast.ClassDef) or getattr(holder, "name", "") == "__init__"
    )
    bodies = [node.body] + [
        method.body
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
    ]
    for body in bodies:
        for statement in body:
            name = _assigned(statement)
            if (
                name
                and (name in guarded or _is_flag(statement))
                and f"``{name}``" not in told
                and not _is_told(name, statement, body, lines)
            ):
                yield f"{node.name}.{name}"


def _is_type_variable(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    return isinstance(value, ast.Call) and ast.unparse(value.func) in ("TypeVar", "ParamSpec")


def _assigned(statement: ast.stmt) -> str | None:
    """Return the name or the field of ``self`` that a statement sets."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    else:
        return None
    if isinstance(target, ast.Name):
        return target.id if target.id != "__all__" else None
    return _field(target)


def _field(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id == "self" else None
    return None


def _is_flag(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Constant) and isinstance(value.value, bool):
        return True
    return isinstance(statement, ast.AnnAssign) and ast.unparse(statement.annotation) == "bool"


def _guarded(node: ast.ClassDef) -> Iterator[str]:
    """Yield the fields that the class changes while it holds a lock of its own.

    Methods that are called under the lock count, and the methods that they call.
    """
    methods = {method.name: method for method in node.body if isinstance(method, ast.FunctionDef)}
    waiting: list[ast.stmt] = []
    for inner in ast.walk(node):
        if isinstance(inner, ast.With) and any(
            LOCK.fullmatch(_field(item.context_expr) or "") for item in inner.items
        ):
            waiting += inner.body
    while waiting:
        statement = waiting.pop()
        yield from _changed(statement)
        for part in ast.walk(statement):
            if isinstance(part, ast.Call) and (
                called := methods.pop(_field(part.func) or "", None)
            ):
                waiting += called.body


def _changed(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and CHANGES.fullmatch(node.func.attr)
        ):
            targets = [node.func.value]
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                while isinstance(part, ast.Subscript):
                    part = part.value
                if name := _field(part):
                    yield name


def _is_told(name: str, statement: ast.stmt, body: list[ast.stmt], lines: list[str]) -> bool:
    """Return True if a comment, or a string below the statement, tells what the name means."""
    after = body[body.index(statement) + 1 : body.index(statement) + 2]
    if after and isinstance(after[0], ast.Expr) and isinstance(after[0].value, ast.Constant):
        return True
    first, last = statement.lineno - 1, (statement.end_lineno or statement.lineno) - 1
    if any("#" in re.sub(r"""(["']).*?\1""", "", line) for line in lines[first : last + 1]):
        return True
    at, is_direct = first - 1, True
    while at >= 0 and lines[at].strip() and not lines[at].lstrip().startswith("#"):
        at, is_direct = at - 1, False
    comment = []
    while at >= 0 and lines[at].lstrip().startswith("#"):
        comment.append(lines[at])
        at -= 1
    text = " ".join(comment)
    return bool(comment) and (is_direct or re.search(rf"``{name}``", text) is not None)


def test_each_guarded_field_flag_and_constant_has_a_sentence() -> None:
    found = {
        f"{name_of(path)}:{name}"
        for room in ROOMS
        for path in sorted((ROOT / "gnsqsync" / room).rglob("*.py"))
        for name in left_out(path.read_text(encoding="utf-8"))
    }
    assert not found - WITHOUT, "\n".join(["Say what it means:", *sorted(found - WITHOUT)])
    assert not WITHOUT - found, "\n".join(["Strike from WITHOUT:", *sorted(WITHOUT - found)])


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("A = 1", ["A"]),
        ("# Seconds.\nA = 1\n_B = 2", ["_B"]),
        ("# Seconds of each: ``A``, ``B``.\nA = 1\nB = 2", []),
        ("A = 1  # seconds", []),
        ('A = 1\n"""Seconds."""', []),
        ("# Seconds.\n\nA = 1", ["A"]),
        ("A = '#'", ["A"]),
        ("T = TypeVar('T')\nlog = 1", []),
        ("class C:\n    a: bool = False\n    b: int = 0", ["C.a"]),
        ('class C:\n    """``a``: true if it is."""\n    a: bool', []),
        ("class C:\n    def __init__(self):\n        self.a = True", ["C.a"]),
    ],
)
def test_names_without_a_sentence_are_found(source: str, names: list[str]) -> None:
    assert left_out(source) == names


@pytest.mark.parametrize(
    ("block", "is_guarded"),
    [
        ("with self._lock:\n            self._a = 1", True),
        ("with self._lock:\n            self._a[1] += 1", True),
        ("with self._lock:\n            self._a.append(1)", True),
        ("with self._lock:\n            self._clear()", True),
        ("with self._mutex:\n            del self._a[1]", True),
        ("with self._lock:\n            return self._a", False),
        ("with self._file:\n            self._a = 1", False),
        ("self._a = 1", False),
    ],
)
def test_fields_that_change_under_a_lock_are_guarded(block: str, is_guarded: bool) -> None:
    source = f"""class C:
    def __init__(self):
        self._a = {{}}
    def change(self):
        {block}
    def _clear(self):
        self._a = None
"""
    assert left_out(source) == ["C._a"] * is_guarded
