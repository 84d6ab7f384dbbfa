"""The public API as text, read from the source: names, signatures, fields. Runs none of it.

``python -m tests.support.api`` writes tests/unit/public_api.txt anew.
``python -m tests.support.api --of FOLDER`` prints what another checkout shows, to compare.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.support.texts import ROOT

SNAPSHOT = ROOT / "tests" / "unit" / "public_api.txt"
COMMAND = "python -m tests.support.api"

# Names with a page in the reference, by module, and then the types in signatures. None means the
# names in ``__all__``.
PUBLIC: dict[str, list[str] | None] = {
    "gnsqsync": None,
    "gnsqsync.contrib.sqlalchemy": None,
    "gnsqsync.dead_letters": None,
    "gnsqsync.django": None,
    "gnsqsync.django.inbox": None,
    "gnsqsync.django.management": ["execute_from_command_line"],
    "gnsqsync.django.outbox": None,
    "gnsqsync.django.schedule": None,
    "gnsqsync.django.tasks": None,
    "gnsqsync.django.test": None,
    "gnsqsync.admin": None,
    "gnsqsync.embedded": None,
    "gnsqsync.embedded.pytest_plugin": [
        "NsqCluster",
        "NsqMessages",
        "nsq_cluster",
        "nsq_messages",
        "nsqd",
        "nsqlookupd",
    ],
    "gnsqsync.errors": None,
    "gnsqsync.flask": None,
    "gnsqsync.http.clients": None,
    "gnsqsync.prometheus": None,
    "gnsqsync.spark": None,
    "gnsqsync.spark.wal": ["PendingEpoch"],
    "gnsqsync.stats": None,
    "gnsqsync.addresses": ["NsqdAddress", "UrlLike"],
    "gnsqsync.embedded.options": ["LookupdFlags", "NsqdFlags"],
    "gnsqsync.http.transport": ["HTTPKeywords"],
    "gnsqsync.policy.writer_nodes": ["Policy"],
    "gnsqsync.reader.options": ["BackoffStrategy", "Latency", "OnGivingUp"],
    "gnsqsync.runtime": ["RuntimeLike"],
}
# Characters of a line. A longer signature has a line for each parameter.
_WIDTH = 100

_Function = ast.FunctionDef | ast.AsyncFunctionDef
# Methods with an underscore that are part of the public API.
_CALLED = {"__call__", "__enter__", "__exit__", "__init__", "__iter__", "__str__"}


class Api:
    """The public API of one checkout of the package."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._trees: dict[str, dict[str, ast.stmt]] = {}

    @cached_property
    def text(self) -> str:
        """Return the API: a line for each name, and below a class a line for each member."""
        return "\n".join("".join(self._lines_of(*item)) for item in PUBLIC.items())

    def _lines_of(self, module: str, names: list[str] | None) -> Iterator[str]:
        yield f"# {module}\n"
        for name in self._exported(module) if names is None else names:
            for line in self._lines(module, name):
                yield f"{module}.{line}\n"

    def _exported(self, module: str) -> list[str]:
        node = self._names(module).get("__all__")
        assert isinstance(node, ast.Assign), f"{module} has no __all__"
        names: list[str] = ast.literal_eval(node.value)
        return sorted(names)

    def _names(self, module: str) -> dict[str, ast.stmt]:
        """Return every name at the top of a module with the statement that makes it."""
        if module not in self._trees:
            path = self._root.joinpath(*module.split("."))
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            self._trees[module] = dict(_made(ast.parse(file.read_text(encoding="utf-8")).body))
        return self._trees[module]

    def _found(self, module: str, name: str) -> tuple[str, ast.stmt]:
        """Return the module that makes a name, and the statement that makes it."""
        made = self._names(module)[name]
        if isinstance(made, ast.ImportFrom):
            source = made.module or ""
            if source.split(".")[0] != "gnsqsync":
                return module, made
            original = next(a.name for a in made.names if (a.asname or a.name) == name)
            return self._found(source, original)
        return module, made

    def _lines(self, module: str, name: str) -> Iterator[str]:
        home, made = self._found(module, name)
        if isinstance(made, ast.ClassDef):
            yield f"{name}{self._bases(made)}"
            for line in sorted(set(self._members(home, made))):
                yield f"{name}.{line}"
        elif isinstance(made, _Function):
            yield _signature(name, made)
        elif isinstance(made, ast.AnnAssign):
            yield f"{name}: {ast.unparse(made.annotation)} = {_value(made.value)}"
        elif isinstance(made, ast.Assign):
            yield f"{name} = {_value(made.value)}"
        else:
            yield name

    @staticmethod
    def _bases(node: ast.ClassDef) -> str:
        bases = [ast.unparse(base) for base in [*node.bases, *node.keywords]]
        return f"({', '.join(bases)})" if bases else ""

    def _members(self, module: str, node: ast.ClassDef) -> Iterator[str]:
        """Yield a line for each member of a class and of its base classes in the package."""
        own = dict(_own_members(node))
        for base in node.bases:
            if isinstance(base, ast.Name) and base.id in self._names(module):
                home, made = self._found(module, base.id)
                if isinstance(made, ast.ClassDef):
                    for line in self._members(home, made):
                        name = line.split("(")[0].split(":")[0].split(" ")[0]
                        own.setdefault(name, line)
        yield from own.values()


def _made(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        if isinstance(node, ast.ClassDef | _Function):
            yield node.name, node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node
        elif isinstance(node, ast.If | ast.Try):
            yield from _made(node.body)


def _own_members(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for member in node.body:
        if isinstance(member, _Function):
            if _is_shown(member.name):
                yield member.name, _signature(member.name, member)
            if member.name == "__init__":
                yield from _attributes(member)
        elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            if _is_shown(member.target.id):
                yield member.target.id, _field(member.target.id, member)
        elif isinstance(member, ast.Assign):
            for target in member.targets:
                if isinstance(target, ast.Name) and _is_shown(target.id):
                    yield target.id, f"{target.id} = {_value(member.value)}"


def _attributes(function: _Function) -> Iterator[tuple[str, str]]:
    """Yield the attributes that ``__init__`` sets, with their types if annotated."""
    for node in ast.walk(function):
        targets, kind = [], ""
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets, kind = [node.target], f": {ast.unparse(node.annotation)}"
        for target in targets:
            if (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id == "self"
                and _is_shown(target.attr)
            ):
                yield target.attr, f"{target.attr}{kind}"


def _is_shown(name: str) -> bool:
    return not name.startswith("_") or name in _CALLED


def _field(name: str, node: ast.AnnAssign) -> str:
    default = "" if node.value is None else f" = {_value(node.value)}"
    return f"{name}: {ast.unparse(node.annotation)}{default}"


def _value(node: ast.expr | None) -> str:
    return "..." if node is None else ast.unparse(node)


def _signature(name: str, node: _Function) -> str:
    if any(isinstance(d, ast.Name) and d.id == "property" for d in node.decorator_list):
        return f"{name}: {_value(node.returns)}"
    line = f"{name}({ast.unparse(node.args)}) -> {_value(node.returns)}"
    if len(line) <= _WIDTH:
        return line
    parameters = "".join(f"    {one},\n" for one in _parameters(node.args))
    return f"{name}(\n{parameters}) -> {_value(node.returns)}"


def _parameters(given: ast.arguments) -> Iterator[str]:
    # Each parameter is unparsed alone, so that its default is written as in the whole.
    by_position = [*given.posonlyargs, *given.args]
    missing = len(by_position) - len(given.defaults)
    defaults = [*[None] * missing, *given.defaults]
    for place, (parameter, default) in enumerate(zip(by_position, defaults, strict=True), 1):
        yield ast.unparse(_alone(args=[parameter], defaults=[default] if default else []))
        if place == len(given.posonlyargs):
            yield "/"
    if given.vararg is not None:
        yield ast.unparse(_alone(vararg=given.vararg))
    elif given.kwonlyargs:
        yield "*"
    for parameter, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        yield ast.unparse(_alone(args=[parameter], defaults=[default] if default else []))
    if given.kwarg is not None:
        yield ast.unparse(_alone(kwarg=given.kwarg))


def _alone(**parts: Any) -> ast.arguments:
    none: dict[str, Any] = {"posonlyargs": [], "args": [], "defaults": [], "kwonlyargs": []}
    return ast.arguments(**{**none, "kw_defaults": [], "vararg": None, "kwarg": None, **parts})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--of", type=Path, help="print the API of the checkout in that folder")
    folder = parser.parse_args().of
    if folder is None:
        SNAPSHOT.write_text(Api(ROOT).text, encoding="utf-8")
    else:
        print(Api(folder).text, end="")


if __name__ == "__main__":
    main()
