"""Docstrings of the public API: summary, arguments, results, errors, units, threads."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest

from tests.support.api import PUBLIC

# Classes whose objects several threads share. Their docstring says which calls any thread may make.
SHARED = (
    "gnsqsync.KeyWindow",
    "gnsqsync.LookupdHTTP",
    "gnsqsync.Message",
    "gnsqsync.Middleware",
    "gnsqsync.NsqdHTTP",
    "gnsqsync.Observer",
    "gnsqsync.Reader",
    "gnsqsync.ReaderGroup",
    "gnsqsync.TopicGroup",
    "gnsqsync.Writer",
    "gnsqsync.dead_letters.DeadLetters",
    "gnsqsync.prometheus.Metrics",
)
UNIT = re.compile(
    r"second|\btime\b|timeout|\d s\b|rate|fraction|factor|times|part of", re.IGNORECASE
)


class Public(NamedTuple):
    """A public class, function, method or property."""

    name: str
    object: Any
    is_property: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def text(self) -> str:
        return inspect.getdoc(self.object) or ""


def _modules() -> Iterator[tuple[str, ModuleType, tuple[str, ...]]]:
    for path, names in PUBLIC.items():
        try:
            # The module says itself that Django is too old, by an error of Django.
            if path == "gnsqsync.django.tasks":
                importlib.import_module("django.tasks")
            module = importlib.import_module(path)
        except ImportError:
            continue  # Its framework is not installed, or is too old.
        yield path, module, names or tuple(getattr(module, "__all__", ()))


@functools.cache
def found() -> tuple[Public, ...]:
    """Return each public thing once, of the modules that can be imported here."""
    things: dict[int, Public] = {}
    for path, module, names in _modules():
        for name in names:
            try:
                each = getattr(module, name)
            except ImportError:
                continue
            if getattr(each, "__module__", "").startswith("gnsqsync"):
                for thing in _with_members(Public(f"{path}.{name}", each)):
                    things.setdefault(id(thing.object), thing)
    return tuple(things.values())


def _with_members(thing: Public) -> Iterator[Public]:
    if isinstance(thing.object, FunctionType):
        yield thing
    if not inspect.isclass(thing.object):
        return
    yield thing
    foreign = [base for base in thing.object.__mro__ if not base.__module__.startswith("gnsqsync")]
    for name, member in vars(thing.object).items():
        # A method of a framework has the framework's arguments and text. Only the package parses
        # the answers of servers.
        if name.startswith("_") or name == "parse" or any(name in vars(base) for base in foreign):
            continue
        inner = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        if isinstance(inner, FunctionType):
            yield Public(f"{thing.name}.{name}", inner)
        elif isinstance(inner, property) and inner.fget is not None:
            yield Public(f"{thing.name}.{name}", inner.fget, is_property=True)


def functions() -> Iterator[tuple[Public, inspect.Signature]]:
    """Return each public function or method with its signature."""
    for thing in found():
        if isinstance(thing.object, FunctionType) and not thing.is_property:
            yield thing, inspect.signature(thing.object)


def failing(rule: Callable[[Public, inspect.Signature], str]) -> list[str]:
    """Return a line for each function that breaks a rule; a rule returns "" or the fault."""
    return [
        f"{thing}: {fault}" for thing, signature in functions() if (fault := rule(thing, signature))
    ]


def test_each_summary_is_one_line_and_a_sentence() -> None:
    wrong = []
    for thing in found():
        summary = thing.text.partition("\n\n")[0]
        if "\n" in summary or not summary.endswith((".", ":")):
            wrong.append(f"{thing}: {summary!r}")
    assert wrong == []
    assert len(found()) > 200


def test_each_argument_is_named_in_the_docstring() -> None:
    def rule(thing: Public, signature: inspect.Signature) -> str:
        names = [name for name in signature.parameters if name not in ("self", "cls")]
        absent = [name for name in names if not re.search(rf"\b{name}\b", thing.text)]
        return f"without {absent}" if absent else ""

    assert failing(rule) == []


def test_each_result_is_told() -> None:
    def rule(thing: Public, signature: inspect.Signature) -> str:
        result = signature.return_annotation
        if result in (None, "None", "Self", "Iterator[Self]", inspect.Signature.empty):
            return ""
        is_told = re.search(r"\breturn(s|ed)?\b|\byields?\b|\bTrue\b", thing.text, re.IGNORECASE)
        return "" if is_told else f"nothing on the result, {result}"

    assert failing(rule) == []


def test_each_error_that_a_function_raises_itself_is_told() -> None:
    def rule(thing: Public, _: inspect.Signature) -> str:
        source = inspect.getsource(thing.object).replace(thing.object.__doc__ or "", "")
        raised = set(re.findall(r"\braise (\w+)\(", source)) - {"AssertionError", "TypeError"}
        caught = set(re.findall(r"\bexcept (\w+)", source))
        absent = [name for name in raised - caught if name[0].isupper() and name not in thing.text]
        return f"without {sorted(absent)}" if absent else ""

    assert failing(rule) == []


def test_each_duration_or_rate_has_a_unit() -> None:
    def rule(thing: Public, signature: inspect.Signature) -> str:
        absent = [
            name
            for name, parameter in signature.parameters.items()
            if re.search(r"\bfloat\b", str(parameter.annotation)) and not UNIT.search(thing.text)
        ]
        return f"no unit of {absent}" if absent else ""

    assert failing(rule) == []


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_class_says_which_thread_may_call(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    shared = getattr(importlib.import_module(module), attribute)
    assert re.search(r"Threads:|\bthread", inspect.getdoc(shared) or "")
