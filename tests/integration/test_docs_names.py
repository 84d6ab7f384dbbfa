"""Docs against the code: every name, keyword, option, default, command and module exists."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib.util import find_spec
from typing import Any

import click
import pytest

import gnsqsync
import gnsqsync.errors
from gnsqsync import (
    ConnectionOptions,
    LookupdHTTP,
    Message,
    NsqdHTTP,
    Reader,
    TopicGroup,
    Writer,
)
from gnsqsync.cli.app import COMMANDS, SERVERS
from gnsqsync.cli.app import gnsqsync as command_group
from gnsqsync.django import nsq_handler
from gnsqsync.embedded.options import NO_EFFECT
from gnsqsync.flask import NSQ
from tests.support.texts import DOCS, EXAMPLES, PAGES, ROOT, code_blocks, name_of

# The folders whose modules the page of the floors describes one by one.


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
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                assert hasattr(module, alias.name) or find_spec(whole), f"there is no {whole}"
                called[alias.asname or alias.name] = getattr(module, alias.name, None)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            owner = called.get(node.func.id)
            given = {keyword.arg for keyword in node.keywords if keyword.arg}
            if owner in (Reader, Writer):
                assert given <= set(options_of(owner)) | set(options_of(ConnectionOptions))
            elif owner is not None and not takes_any_keyword(owner):
                assert given <= set(inspect.signature(owner).parameters), node.func.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = objects.get(node.value.id)
            assert owner is None or hasattr(owner, node.attr), f"{node.value.id}.{node.attr}"


def takes_any_keyword(owner: Callable[..., Any]) -> bool:
    parameters = inspect.signature(owner).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def options_of(owner: Callable[..., Any]) -> dict[str, Any]:
    """Each option with its default; ``inspect.Parameter.empty`` for what must be given."""
    if owner is ConnectionOptions:
        signature = inspect.signature(owner)
        factories = {f.name for f in fields(owner) if callable(f.default_factory)}
        return {
            name: "from the host" if name in factories else parameter.default
            for name, parameter in signature.parameters.items()
        }
    return {
        name: parameter.default
        for name, parameter in inspect.signature(owner).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }


def option_table(title: str) -> dict[str, str]:
    """Option -> default, of the list-table under the section ``title`` of the options page."""
    page = (DOCS / "reference" / "options.rst").read_text(encoding="utf-8")
    section = re.search(rf"^{title}\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", page, re.M | re.S)
    assert section is not None, f"no section {title!r}"
    rows = re.findall(r"^   \* - ``(\w+)``\n     - (.*)$", section[1], re.M)
    assert len(rows) == len(dict(rows)), "an option is listed twice"
    return dict(rows)


def http_options(owner: type[Any]) -> dict[str, Any]:
    shared = options_of(owner.__mro__[1])
    own = options_of(owner)
    own.pop("options", None)
    return {**shared, **own}


@pytest.mark.parametrize(
    ("title", "options"),
    [
        ("Reader", options_of(Reader)),
        ("TopicGroup", options_of(TopicGroup)),
        ("nsq_handler", options_of(nsq_handler)),
        ("NSQ.handler", options_of(NSQ().handler)),
        ("Writer", options_of(Writer)),
        ("Connection options", options_of(ConnectionOptions)),
        ("NsqdHTTP", http_options(NsqdHTTP)),
        ("LookupdHTTP", http_options(LookupdHTTP)),
    ],
)
def test_the_options_page_lists_every_option_with_its_default(
    title: str, options: dict[str, Any]
) -> None:
    def shown(default: Any) -> str:
        if default is inspect.Parameter.empty:
            return "required"
        return default if default == "from the host" else f"``{default!r}``"

    version = f"gnsqsync/{gnsqsync.__version__}"
    expected = {name: shown(default) for name, default in options.items()}
    if "user_agent" in expected:
        assert expected["user_agent"] == f"``{version!r}``"
        expected["user_agent"] = "``'gnsqsync/<version>'``"
    assert option_table(title) == expected


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
        "gnsqsync.embedded",
        "gnsqsync.django",
        "gnsqsync.django.outbox",
        "gnsqsync.django.test",
        "gnsqsync.flask",
        "gnsqsync.prometheus",
        "gnsqsync.spark",
    ],
)
def test_the_reference_lists_exactly_the_public_names(module: str) -> None:
    assert documented(module) == set(importlib.import_module(module).__all__)


def test_the_page_of_the_floors_knows_every_module() -> None:
    """A new module needs a line in the table of that page, a flat one a place in the sentence."""
    page = (DOCS / "design" / "floors.rst").read_text(encoding="utf-8")
    package = ROOT / "gnsqsync"
    flat = {path.stem for path in package.glob("*.py") if not path.name.startswith("_")}
    ground = page.split('"ground" are the flat modules:')[1].split(". ")[0]
    assert set(re.findall(r"``(\w+)``", ground)) == flat
    table = page.split("\nModule ")[1].split("\n\n")[0]
    told = {
        name for row in table.splitlines() for name in re.findall(r"``(.+?)``", row.split("  ")[0])
    }
    rooms = [path.parent.name for path in package.glob("*/__init__.py")]
    elsewhere = {"embedded", "django", "flask", "cli"}
    modules = flat | {
        f"{room}/{path.stem}"
        for room in set(rooms) - elsewhere
        for path in package.glob(f"{room}/*.py")
        if not path.name.startswith("_")
    }
    of_runtime = {name for name in modules if name.startswith("runtime/")}
    assert told - of_runtime == (modules - of_runtime) | {"runtime/", "spark/jobs/"}


def test_the_command_line_page_knows_every_command_and_no_other_option() -> None:
    text = (DOCS / "guides" / "cli.rst").read_text(encoding="utf-8")
    sections = dict(
        re.findall(r"^gnsqsync ([\w-]+)\n-+\n(.*?)(?=^gnsqsync [\w-]+\n-+\n|\Z)", text, re.M | re.S)
    )
    assert set(sections) == {*COMMANDS, *SERVERS}
    context = click.Context(command_group)
    for name in COMMANDS:
        command = command_group.get_command(context, name)
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        told = set(re.findall(r"``(--[\w-]+)", sections[name]))
        assert told <= known | {"--help"}, f"{name} has no {told - known}"


def test_the_guide_names_the_flags_without_effect() -> None:
    text = (DOCS / "guides" / "embedded.rst").read_text(encoding="utf-8")
    told = {flag.replace("-", "_") for flag in re.findall(r"``--([\w-]+)``", text)}
    assert told >= NO_EFFECT
