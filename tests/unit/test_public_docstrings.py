"""Docstrings of the public API: summary, arguments, results, errors, units, threads.

The signature stands directly above the text, here and in the reference, so it tells the type and
the default. The text tells what a signature cannot: the unit of a number, and what None means.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import pytest

from gnsqsync.errors import ClosedError, ConfigError, ProtocolError
from tests.support.api import PUBLIC

# Classes whose objects several threads share, or might try to share: "Threads:" says who may call.
SHARED = (
    "gnsqsync.Encoder",
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
    "gnsqsync.admin.Admin",
    "gnsqsync.admin.Nsqadmin",
    "gnsqsync.contrib.sqlalchemy.Inbox",
    "gnsqsync.contrib.sqlalchemy.Outbox",
    "gnsqsync.contrib.sqlalchemy.Relay",
    "gnsqsync.dead_letters.DeadLetters",
    "gnsqsync.embedded.Nsqd",
    "gnsqsync.embedded.Nsqlookupd",
    "gnsqsync.flask.NSQ",
    "gnsqsync.prometheus.Metrics",
)
# The entry of a number says what is counted, and from where to where if that is not plain.
UNIT = re.compile(
    r"\b(nano|micro|milli)?seconds?\b|\bbytes\b|\bpercent\b|\b(number|part) of\b|\bupper bound of\b"
    r"|\b(level|status|port)\b|\b(letters|messages|markers|rows|publishes|FINs|REQs)\b",
    re.IGNORECASE,
)
# A default of None is told by its name, or by a reference to the place that tells it.
DEFAULT = re.compile(r"\bNone\b|\bdefault\b|\bwithout\b|\bas (in|for)\b", re.IGNORECASE)
# A head, and an indented line for each entry, which its own lines continue.
_SECTION = r"^{}:\n((?: +.*(?:\n|$)|\n)*)"
_ENTRY = re.compile(r"^    \*{0,2}(\w+)(?: \(.*?\))?:((?:.|\n(?!    \S))*)", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Public:
    """A public class, function, method or property."""

    name: str
    object: Any
    is_property: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def text(self) -> str:
        return inspect.getdoc(self.object) or ""

    @property
    def summary(self) -> str:
        return self.text.partition("\n\n")[0]

    @property
    def function(self) -> Any:
        """The function that a call runs: of a class the constructor."""
        return self.object.__init__ if inspect.isclass(self.object) else self.object

    @functools.cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters that a caller gives."""
        found = inspect.signature(self.function).parameters
        return {name: each for name, each in found.items() if name not in ("self", "cls")}

    def is_variadic(self, name: str) -> bool:
        return self.parameters[name].kind is inspect.Parameter.VAR_KEYWORD

    @property
    def keywords(self) -> set[str]:
        """The keywords that ``**options: Unpack[Keywords]`` takes."""
        names = inspect.unwrap(self.function).__globals__
        kinds = [str(each.annotation) for each in self.parameters.values()]
        unpacked = [kind[len("Unpack[") : -1] for kind in kinds if kind.startswith("Unpack[")]
        return {key for kind in unpacked for key in names[kind].__annotations__}

    def entries(self, *sections: str) -> dict[str, str]:
        """Return the entries below these heads: name to text, on one line."""
        found: dict[str, str] = {}
        for section in sections:
            place = re.search(_SECTION.format(section), self.text, re.MULTILINE)
            for entry in _ENTRY.finditer(place[1] if place else ""):
                found[entry[1]] = " ".join(entry[2].split())
        return found


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
    bases = thing.object.__mro__
    foreign = [base for base in bases if not _is_ours(base)]
    members = {
        name: member
        for base in reversed(bases)
        if _is_ours(base)
        for name, member in vars(base).items()
    }
    for name, member in members.items():
        # A method of a framework has the framework's arguments and text. Only the package parses
        # the answers of servers.
        if (
            (name.startswith("_") and name != "__call__")
            or name == "parse"
            or any(name in vars(base) for base in foreign)
        ):
            continue
        inner = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        if isinstance(inner, FunctionType):
            yield Public(f"{thing.name}.{name}", inner)
        elif isinstance(inner, property) and inner.fget is not None:
            yield Public(f"{thing.name}.{name}", inner.fget, is_property=True)


def _is_ours(base: type) -> bool:
    return base.__module__.startswith("gnsqsync")


def functions() -> Iterator[Public]:
    """Return each public function or method."""
    for thing in found():
        if isinstance(thing.object, FunctionType) and not thing.is_property:
            yield thing


def constructors() -> Iterator[Public]:
    """Return each public class with a constructor or with fields of its own."""
    for thing in found():
        if not inspect.isclass(thing.object):
            continue
        init = vars(thing.object).get("__init__")
        frameworks = [base for base in thing.object.__mro__ if not _is_ours(base)]
        is_foreign = any(
            "__init__" in vars(base) and base.__module__ not in ("builtins", "typing")
            for base in frameworks
        )
        if isinstance(init, FunctionType) and not is_foreign and not _is_protocol(thing.object):
            yield thing


def _is_protocol(made: type) -> bool:
    return bool(getattr(made, "_is_protocol", False))


def callables() -> Iterator[Public]:
    yield from functions()
    yield from constructors()


def failing(rule: Callable[[Public], str], things: Iterator[Public]) -> list[str]:
    """Return a line for each thing that breaks a rule; a rule returns "" or the fault."""
    return [f"{thing}: {fault}" for thing in things if (fault := rule(thing))]


def raised_by(function: Any) -> set[type]:
    """Return the errors that the body of a function raises by name and does not catch itself."""
    function = inspect.unwrap(function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    names = {**vars(builtins), **function.__globals__}
    # A name that is not there is a variable: the error came from elsewhere.
    raised = [(names.get(name), caught) for name, caught in _raises(tree.body[0], ())]
    return {
        error
        for error, caught in raised
        if inspect.isclass(error)
        and not issubclass(error, tuple(names[name] for name in caught if name in names))
    }


def _raises(node: ast.AST, caught: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the name of each error that is raised below ``node``, with the names caught there."""
    if isinstance(node, ast.Raise) and node.exc is not None:
        error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if isinstance(error, ast.Name):
            yield error.id, caught
    within = caught
    if isinstance(node, ast.Try):
        kinds = [
            kind for handler in node.handlers if handler.type for kind in ast.walk(handler.type)
        ]
        within += tuple(kind.id for kind in kinds if isinstance(kind, ast.Name))
    tried = node.body if isinstance(node, ast.Try) else []
    for child in ast.iter_child_nodes(node):
        # A function inside is called later, perhaps by somebody else.
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _raises(child, within if child in tried else caught)


def test_each_summary_is_one_line_and_a_sentence() -> None:
    wrong = [
        f"{thing}: {thing.summary!r}"
        for thing in found()
        if "\n" in thing.summary or not thing.summary.endswith(".")
    ]
    assert wrong == []
    assert len(found()) > 200


def test_no_colon_is_taken_for_the_end_of_a_type() -> None:
    """The reference takes words before a colon for the type: of a property, and of a result."""
    wrong = []
    for thing in found():
        lines = re.findall(r"^(?:Returns|Yields):\n(.*)", thing.text, re.MULTILINE)
        lines += [thing.summary] if thing.is_property else []
        wrong += [f"{thing}: {line}" for line in lines if ":" in re.sub(r"``.*?``", "", line)]
    assert wrong == []


def test_each_argument_has_an_entry() -> None:
    """A single argument may stand in the text instead, in double backquotes.

    Keywords that a TypedDict names have an entry together, or one each.
    """

    def rule(thing: Public) -> str:
        told = thing.entries("Args", "Attributes").keys()
        public = [name for name in thing.parameters if not name.startswith("_")]
        absent = [
            name
            for name in public
            if name not in told
            and not (thing.is_variadic(name) and thing.keywords and thing.keywords <= told)
        ]
        if absent == public and len(public) == 1 and f"``{public[0]}``" in thing.text:
            return ""
        return f"no entry for {absent}" if absent else ""

    assert failing(rule, callables()) == []


def test_no_entry_is_for_an_argument_that_is_not_there() -> None:
    def rule(thing: Public) -> str:
        left = thing.entries("Args").keys() - thing.parameters.keys() - thing.keywords
        return f"entries of {sorted(left)}" if left else ""

    assert failing(rule, callables()) == []


def test_no_entry_only_repeats_its_type() -> None:
    def rule(thing: Public) -> str:
        told = thing.entries("Args", "Attributes", "Returns")
        empty = [name for name, text in told.items() if re.fullmatch(r"(The|An?) \w+\.|", text)]
        return f"nothing on {empty}" if empty else ""

    assert failing(rule, callables()) == []


def test_each_number_has_its_unit() -> None:
    def rule(thing: Public) -> str:
        told = thing.entries("Args", "Attributes")
        absent = [
            name
            for name, each in thing.parameters.items()
            if {"int", "float"} & set(re.split(r"\s*\|\s*", str(each.annotation)))
            and not UNIT.search(told.get(name, thing.text))
        ]
        return f"no unit of {absent}" if absent else ""

    assert failing(rule, callables()) == []


def test_each_default_of_none_is_told() -> None:
    def rule(thing: Public) -> str:
        told = thing.entries("Args", "Attributes")
        absent = [
            name
            for name, each in thing.parameters.items()
            if each.default is None and not DEFAULT.search(told.get(name, thing.text))
        ]
        return f"nothing about None of {absent}" if absent else ""

    assert failing(rule, callables()) == []


def test_each_result_is_told() -> None:
    def rule(thing: Public) -> str:
        result = inspect.signature(thing.object).return_annotation
        if result in (None, "None", "Self", "Iterator[Self]", inspect.Signature.empty):
            return ""
        is_told = re.match(r"(Return|Yield|True)\b|.*\. Return\b", thing.summary)
        is_told = is_told or re.search(r"^(Returns|Yields):\n", thing.text, re.MULTILINE)
        return "" if is_told else f"nothing on the result, {result}"

    assert failing(rule, functions()) == []


def test_each_error_that_a_function_raises_itself_is_told() -> None:
    def rule(thing: Public) -> str:
        told = thing.entries("Raises")
        absent = [
            error.__name__
            for error in raised_by(thing.function)
            if error not in (AssertionError, TypeError) and error.__name__ not in told
        ]
        return f"Raises without {sorted(absent)}" if absent else ""

    properties = (thing for thing in found() if thing.is_property)
    written = (thing for thing in callables() if not dataclasses.is_dataclass(thing.object))
    assert failing(rule, properties) + failing(rule, written) == []


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_class_says_which_thread_may_call(name: str) -> None:
    shared = next((thing for thing in found() if thing.name == name), None)
    if shared is None:
        pytest.skip(f"{name} cannot be imported here")
    assert "\nThreads:\n    " in shared.text


def test_a_function_tells_of_threads_below_their_head() -> None:
    def rule(thing: Public) -> str:
        before = thing.text.partition("\nThreads:\n")[0]
        return "above Threads:" if re.search(r"\bany thread\b", before, re.IGNORECASE) else ""

    assert failing(rule, functions()) == []


def sample(one: int, *, two: float | None = None) -> int:
    """Return one number of several.

    Args:
        one: Bytes of
            several lines.
        two: Seconds; None: no limit.

    Raises:
        ConfigError: Never.
    """
    try:
        if two is not None:
            raise ConfigError("caught here")
    except ValueError:
        raise ProtocolError("not caught here") from None
    else:
        raise ClosedError("not caught, either")

    def later() -> None:
        raise KeyError(one)


def test_entries_and_errors_are_read_as_they_stand() -> None:
    thing = Public("sample", sample)
    assert thing.summary == "Return one number of several."
    assert thing.entries("Args") == {
        "one": "Bytes of several lines.",
        "two": "Seconds; None: no limit.",
    }
    assert thing.entries("Args", "Raises").keys() == {"one", "two", "ConfigError"}
    assert raised_by(sample) == {ProtocolError, ClosedError}
