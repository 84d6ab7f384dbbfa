"""Docs against the code: every name, keyword, option, default, command and module exists."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

import gnsqsync
import gnsqsync.errors
from gnsqsync import ConnectionOptions, LookupdHTTP, Message, NsqdHTTP, Reader, Writer
from gnsqsync.cli.app import COMMANDS, SERVERS
from gnsqsync.cli.app import gnsqsync as command_group
from gnsqsync.embedded.options import NO_EFFECT, LookupdOptions, NsqdOptions
from tests.support.texts import DOCS, EXAMPLES, PAGES, ROOT, code_blocks, name_of


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
    objects: dict[str, Any] = {"reader": Reader, "writer": Writer, "message": Message}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gnsqsync"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            owner = {"Reader": Reader, "Writer": Writer}.get(node.func.id)
            if owner is not None:
                given = {keyword.arg for keyword in node.keywords if keyword.arg}
                assert given <= set(options_of(owner)) | set(options_of(ConnectionOptions))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = objects.get(node.value.id)
            assert owner is None or hasattr(owner, node.attr), f"{node.value.id}.{node.attr}"


def options_of(owner: type[Any]) -> dict[str, Any]:
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


@pytest.mark.parametrize("module", ["gnsqsync", "gnsqsync.errors", "gnsqsync.embedded"])
def test_the_reference_lists_exactly_the_public_names(module: str) -> None:
    assert documented(module) == set(importlib.import_module(module).__all__)


def floors() -> dict[str, int]:
    """Module or folder of the package -> its floor, from the block on the page of the floors."""
    page = (DOCS / "design" / "floors.rst").read_text(encoding="utf-8")
    rows = re.findall(r"^   ([0-4])  (\S.*)$", page, re.MULTILINE)
    assert [row[0] for row in rows] == ["4", "3", "2", "1", "0"]
    return {name.rstrip("/"): int(floor) for floor, names in rows for name in names.split()}


def imports_of(path: Path) -> set[str]:
    """The modules and folders of the package that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "gnsqsync":
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gnsqsync."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            found.update(name[1] for name in names if name[0] == "gnsqsync" and name[1:])
    return found


def test_imports_only_go_down_the_floors() -> None:
    floor = floors()
    package = ROOT / "gnsqsync"
    names = {path.stem for path in package.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert names - {"__init__", "_version", "__pycache__"} == set(floor)
    for path in sorted(package.rglob("*.py")):
        own = path.relative_to(package).parts[0].removesuffix(".py")
        if own not in floor:
            continue
        # The command line is above everything and imports the public names.
        others = (imports_of(path) & set(floor)) - {own}
        for other in others:
            where = f"{name_of(path)} imports {other}"
            assert floor[other] <= floor[own], where
            assert floor[other] != floor[own] or floor[own] in (0, 3), where
            assert other != "embedded" or own == "cli", where


def test_the_page_of_the_floors_knows_every_module() -> None:
    page = (DOCS / "design" / "floors.rst").read_text(encoding="utf-8")
    table = page.split("\nModule ")[1].split("\n\n")[0]
    patterns = [
        name for row in table.splitlines() for name in re.findall(r"``([\w/*]+)``", row[:24])
    ]
    package = ROOT / "gnsqsync"
    described = ("*.py", "wire/*.py", "policy/*.py", "net/*.py")
    modules = {path for pattern in described for path in package.glob(pattern)}
    modules = {path for path in modules if not path.name.startswith("_")}
    folders = {name for name in patterns if name.endswith("/")}
    assert folders == {"runtime/"}
    told = {path for name in patterns for path in package.glob(f"{name}.py")}
    assert modules == told
    told_of_each = [[*package.glob(f"{name}.py")] for name in patterns if name not in folders]
    assert all(told_of_each)


def test_the_command_line_page_knows_every_command_and_no_other_option() -> None:
    text = (DOCS / "guides" / "cli.rst").read_text(encoding="utf-8")
    sections = dict(
        re.findall(r"^gnsqsync (\w+)\n-+\n(.*?)(?=^gnsqsync \w+\n-+\n|\Z)", text, re.M | re.S)
    )
    assert set(sections) == {*COMMANDS, *SERVERS}
    context = click.Context(command_group)
    for name in COMMANDS:
        command = command_group.get_command(context, name)
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        told = set(re.findall(r"``(--[\w-]+)", sections[name]))
        assert told <= known | {"--help"}, f"{name} has no {told - known}"


def test_commands_in_the_texts_exist() -> None:
    context = click.Context(command_group)
    seen = set()
    for page in PAGES:
        for block in code_blocks(page, "console"):
            for name, rest in re.findall(r"\bgnsqsync (\w+)([^|&\n]*)", block):
                seen.add(name)
                if name in SERVERS:
                    options = NsqdOptions if name == "nsqd" else LookupdOptions
                    known = {f"--{field.name.replace('_', '-')}" for field in fields(options)}
                else:
                    command = command_group.get_command(context, name)
                    assert command is not None, f"{name_of(page)}: gnsqsync {name}"
                    known = {option for parameter in command.params for option in parameter.opts}
                told = set(re.findall(r"(?<!\S)(--[\w-]+)", rest))
                assert told <= known, f"{name_of(page)}: gnsqsync {name} has no {told - known}"
    assert seen == {*COMMANDS, *SERVERS}


def test_the_guide_names_the_flags_without_effect() -> None:
    text = (DOCS / "guides" / "embedded.rst").read_text(encoding="utf-8")
    told = {flag.replace("-", "_") for flag in re.findall(r"``--([\w-]+)``", text)}
    assert told >= NO_EFFECT
