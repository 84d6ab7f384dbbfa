"""Docs against the code: every name, keyword, option, default, command and module exists."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import click
import pytest

from gnsqsync import (
    ConnectionOptions,
    LookupdHTTP,
    Message,
    NsqdHTTP,
    Reader,
    ReaderGroup,
    TopicGroup,
    Writer,
)
from gnsqsync.cli.app import COMMANDS, SERVERS, spark
from gnsqsync.cli.app import gnsqsync as command_group
from gnsqsync.django import nsq_handler
from gnsqsync.embedded.options import NO_EFFECT
from gnsqsync.flask import NSQ
from tests.support.needs import NoExtra, missing
from tests.support.texts import DOCS, EXAMPLES, PAGES, ROOT, code_blocks, name_of

# Packages that the extra spark-test brings.
SPARK = ("pyspark", "pyarrow")


def python_texts() -> Iterator[tuple[str, str]]:
    """Every piece of Python in the texts and the examples, with its place."""
    for page in PAGES:
        for number, block in enumerate(code_blocks(page, "python"), 1):
            yield f"{name_of(page)}, block {number}", block
    for path in sorted(EXAMPLES.glob("*.py")):
        yield name_of(path), path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("place", "text"), [pytest.param(*t, id=t[0]) for t in python_texts()])
def test_python_in_the_texts_is_true(place: str, text: str) -> None:
    """It compiles; what it imports from gnsqsync, its keywords and its attributes exist."""
    tree = ast.parse(text, place)
    called: dict[str, Any] = {"Reader": Reader, "Writer": Writer}
    objects: dict[str, Any] = {"reader": Reader, "writer": Writer, "message": Message}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gnsqsync"):
            names = [alias.name for alias in node.names]
            found = imported(node.module or "", names)
            called |= {alias.asname or alias.name: found[alias.name] for alias in node.names}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            owner = called.get(node.func.id)
            given = {keyword.arg for keyword in node.keywords if keyword.arg}
            if owner in (Reader, Writer):
                assert given <= options_of(owner) | options_of(ConnectionOptions)
            elif owner is not None and not takes_any_keyword(owner):
                assert given <= set(inspect.signature(owner).parameters), node.func.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = objects.get(node.value.id)
            assert owner is None or hasattr(owner, node.attr), f"{node.value.id}.{node.attr}"


def imported(name: str, members: list[str]) -> dict[str, Any]:
    """Return members of a module; None for a submodule. Skip the test where an extra is missing."""
    try:
        module = importlib.import_module(name)
        for member in members:
            whole = f"{name}.{member}"
            assert hasattr(module, member) or find_spec(whole), f"there is no {whole}"
        return {member: getattr(module, member, None) for member in members}
    except ImportError as error:
        # gnsqsync.spark says in its own words which package is not there.
        cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
        needed = (cause.name or "").partition(".")[0]
        if needed not in SPARK:
            raise
        missing(NoExtra(needed, "spark-test"))


def takes_any_keyword(owner: Callable[..., Any]) -> bool:
    parameters = inspect.signature(owner).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def options_of(owner: Callable[..., Any]) -> set[str]:
    """The names of its parameters, without ``**keywords``."""
    return {
        name
        for name, parameter in inspect.signature(owner).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD and name != "self"
    }


def directive(name: str) -> Any:
    """Return a module of docs/ that makes tables, as Sphinx imports it."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


OPTION_TABLES = {
    "gnsqsync.Reader": Reader,
    "gnsqsync.ReaderGroup": ReaderGroup,
    "gnsqsync.TopicGroup": TopicGroup,
    "gnsqsync.django.nsq_handler": nsq_handler,
    "gnsqsync.flask.NSQ.handler": NSQ.handler,
    "gnsqsync.Writer": Writer,
    "gnsqsync.ConnectionOptions": ConnectionOptions,
    "gnsqsync.NsqdHTTP": NsqdHTTP,
    "gnsqsync.LookupdHTTP": LookupdHTTP,
}


def test_the_options_page_has_these_tables() -> None:
    page = (DOCS / "reference" / "options.rst").read_text(encoding="utf-8")
    assert set(re.findall(r"^\.\. option-table:: (\S+)$", page, re.MULTILINE)) == set(OPTION_TABLES)


@pytest.mark.parametrize("owner", OPTION_TABLES.values(), ids=OPTION_TABLES)
def test_the_docstring_tells_every_option(owner: Callable[..., Any]) -> None:
    tables = directive("option_tables")
    told, defaults = tables.meanings_of(owner), tables.defaults_of(owner)
    assert set(told) == set(defaults) >= options_of(owner)
    assert [text for text in told.values() if not text.endswith(".")] == []


def test_defaults_of_a_table() -> None:
    defaults = directive("option_tables").defaults_of
    assert defaults(Reader)["topic"] == "required"
    assert defaults(Reader)["concurrency"] == "``1``"
    assert defaults(ConnectionOptions)["hostname"] == "from the host"
    assert defaults(ConnectionOptions)["user_agent"] == "``'gnsqsync/<version>'``"
    assert defaults(NsqdHTTP)["timeout"] == "``5.0``"
    assert defaults(NsqdHTTP)["trust_env"] == "``False``"


def documented(module: str) -> set[str]:
    """The names right below ``module`` that the reference has a directive for."""
    text = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.rst"))
    kinds = "autoclass|autoexception|autofunction|py:data"
    pattern = rf"^\.\. (?:{kinds}):: {re.escape(module)}\.(\w+)(?:\(\))?$"
    return set(re.findall(pattern, text, re.M))


@pytest.mark.parametrize(
    "module",
    [
        "gnsqsync",
        "gnsqsync.errors",
        "gnsqsync.admin",
        "gnsqsync.embedded",
        "gnsqsync.django",
        "gnsqsync.django.outbox",
        "gnsqsync.django.test",
        "gnsqsync.flask",
        "gnsqsync.prometheus",
        "gnsqsync.contrib.opentelemetry",
        "gnsqsync.contrib.sentry",
        "gnsqsync.spark",
    ],
)
def test_the_reference_lists_exactly_the_public_names(module: str) -> None:
    assert documented(module) == set(importlib.import_module(module).__all__)


def test_the_page_of_the_floors_knows_every_module() -> None:
    """A new room needs a place in the table of that page, a flat module one in the sentence."""
    page = (DOCS / "design" / "floors.rst").read_text(encoding="utf-8")
    package = ROOT / "gnsqsync"
    flat = {path.stem for path in package.glob("*.py") if not path.name.startswith("_")}
    ground = page.split('"ground" are the flat modules:')[1].split(". ")[0]
    assert set(re.findall(r"``(\w+)``", ground)) == flat
    told = page.split(".. module-table::")[1].split("\n\n")[0].split()
    rooms = {path.parent.name for path in package.glob("*/__init__.py")}
    elsewhere = {"embedded", "daemon", "django", "flask", "cli"}
    assert sorted(told) == sorted({"."} | (rooms - elsewhere))


@pytest.mark.parametrize("room", [".", "wire", "admin", "spark"])
def test_each_module_of_a_table_says_its_subject(room: str) -> None:
    table = directive("module_table")
    paths = table.modules_of(room)
    assert paths
    assert [path for path in paths if table.summary_of(path)[-1] not in ".?"] == []


def test_the_command_line_page_knows_every_command_and_no_other_option() -> None:
    text = (DOCS / "guides" / "cli.rst").read_text(encoding="utf-8")
    heading = r"^(gnsqsync [\w -]+(?:, gnsqsync [\w-]+)*)\n-+\n"
    _, *parts = re.split(heading, text, flags=re.M)
    sections = {
        name.partition(" ")[2]: body
        for names, body in zip(parts[::2], parts[1::2], strict=True)
        for name in names.split(", ")
    }
    assert set(sections) == {*COMMANDS, *SERVERS, *(f"spark {name}" for name in spark.commands)}
    context = click.Context(command_group)
    for name in sections.keys() - SERVERS.keys():
        group: click.Group = spark if name.startswith("spark ") else command_group
        command = group.get_command(context, name.removeprefix("spark "))
        assert command is not None
        each = command.commands.values() if isinstance(command, click.Group) else [command]
        known = {option for one in each for parameter in one.params for option in parameter.opts}
        told = set(re.findall(r"``(--[\w-]+)", sections[name]))
        assert told <= known | {"--help"}, f"{name} has no {told - known}"


def test_the_guide_names_the_flags_without_effect() -> None:
    text = (DOCS / "guides" / "embedded.rst").read_text(encoding="utf-8")
    told = {flag.replace("-", "_") for flag in re.findall(r"``--([\w-]+)``", text)}
    assert told >= NO_EFFECT


def test_the_glossary_has_twenty_words_at_most_and_each_is_used() -> None:
    page = (DOCS / "design" / "index.rst").read_text(encoding="utf-8")
    words = re.findall(r"^   (\w[\w ]*)\n      ", page, re.MULTILINE)
    assert 15 <= len(words) <= 20
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "gnsqsync").rglob("*.py")]
    code = " ".join(" ".join(sources).replace("#", " ").split())
    assert [word for word in words if not re.search(rf"\b{word}", code, re.IGNORECASE)] == []
