"""Commands in the texts: each exists, with each of its options, on whichever line it stands."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import click
import django
import pytest

from gnsqsync.admin.options import AdminOptions
from gnsqsync.cli.app import COMMANDS, SERVERS, SPARK
from gnsqsync.cli.app import gnsqsync as command_group
from gnsqsync.embedded.options import LookupdOptions, NsqdOptions
from gnsqsync.flask import NSQ
from gnsqsync.flask.commands import commands_of as flask_commands_of
from tests.support.texts import DOCS, PAGES, ROOT, code_blocks, name_of, project

SEPARATORS = set("|&;()<>")
# A manage.py: prints a dictionary of the help of commands, by their words.
DJANGO = """
import contextlib, io, json, sys
import django
from django.conf import settings
from django.core.management import execute_from_command_line

apps = ["gnsqsync.django", "gnsqsync.django.inbox", "gnsqsync.django.outbox"]
if django.VERSION >= (6,):
    apps.append("gnsqsync.django.tasks")
settings.configure(INSTALLED_APPS=apps, GNSQSYNC={})
found = {}
for words in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
        execute_from_command_line(["manage.py", *words.split(), "--help"])
    found[words] = output.getvalue()
print(json.dumps(found))
"""


def commands_of(line: str) -> Iterator[list[str]]:
    """The words of each command of a line of shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;()<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    for word in lexer:
        if set(word) <= SEPARATORS:
            yield words
            words = []
        else:
            words.append(word)
    yield words


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command of the ``console`` blocks, with its page; prompts and line ends taken off."""
    for page in PAGES:
        for block in code_blocks(page, "console"):
            for line in block.replace("\\\n", " ").splitlines():
                found = [words for words in commands_of(line.removeprefix("$ ")) if words]
                # The program that $(gnsqsync spark script) names takes the next words.
                scripts = [
                    n
                    for n, (program, *rest) in enumerate(found)
                    if program.endswith("gnsqsync") and rest == ["spark", "script"]
                ]
                for n in scripts:
                    found[n + 1][:0] = ["gnsqsync", "spark"]
                for words in found:
                    yield name_of(page), words


def options_in(words: list[str]) -> set[str]:
    return {w.split("=")[0] for w in words if re.match(r"-{1,2}[a-zA-Z]", w)}


def options_of(command: click.Command) -> set[str]:
    found = {"--help"}
    for parameter in command.params:
        found |= {*parameter.opts, *parameter.secondary_opts}
    return found


def options_of_help(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", text))


def test_commands_of_gnsqsync() -> None:
    context = click.Context(command_group)
    seen = set()
    for page, words in commands():
        if not re.search(r"(^|/)gnsqsync$", words[0]):
            continue
        name, *rest = words[1:]
        seen.add(f"spark {rest[0]}" if name == "spark" else name)
        if name in SERVERS:
            options = (NsqdOptions, LookupdOptions, AdminOptions)
            flags = next(each.known for each in options if each.program == name)
            known = {f"--{flag.replace('_', '-')}" for flag in flags}
        else:
            command = command_group.get_command(context, name)
            assert command is not None, f"{page}: gnsqsync {name}"
            while isinstance(command, click.Group):
                assert rest, f"{page}: gnsqsync {name} and no command below it"
                inner = command.get_command(context, rest[0])
                assert inner is not None, f"{page}: gnsqsync {name} {rest[0]}"
                command, rest = inner, rest[1:]
            known = options_of(command)
        told = options_in(rest)
        assert told <= known, f"{page}: gnsqsync {name} has no {told - known}"
    assert seen == {*COMMANDS, *SERVERS, *(f"spark {name}" for name in SPARK)}


@cache
def commands_of_django() -> dict[str, list[tuple[str, set[str]]]]:
    """Page and options of each use in the texts, by the command and what it has below."""
    found: dict[str, list[tuple[str, set[str]]]] = {}
    for page, words in commands():
        if "manage.py" in words and (name := words[words.index("manage.py") + 1])[:4] == "nsq_":
            if name == "nsq_tasks" and django.VERSION < (6,):
                continue
            rest = words[words.index(name) + 1 :]
            # It has commands of its own.
            below = rest[:1] if name == "nsq_dead_letters" else []
            found.setdefault(" ".join([name, *below]), []).append((page, options_in(rest)))
    return found


@cache
def django_options() -> dict[str, set[str]]:
    """Options of these commands, from one process for all of them."""
    done = subprocess.run(
        [sys.executable, "-c", DJANGO, *commands_of_django()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    helps: dict[str, str] = json.loads(done.stdout)
    return {name: options_of_help(text) for name, text in helps.items()}


def test_commands_of_django() -> None:
    for name, uses in commands_of_django().items():
        for page, told in uses:
            assert told <= django_options()[name], f"{page}: {name} {told}"
    seen = {name.split()[0] for name in commands_of_django()}
    named = {"nsq_consume", "nsq_publish", "nsq_stat", "nsq_relay", "nsq_health"}
    assert seen >= named | {"nsq_dead_letters"}


def test_the_unit_of_systemd() -> None:
    (block,) = code_blocks(DOCS / "guides" / "django.rst", "ini")
    unit = configparser.ConfigParser()
    unit.read_string(block)
    service = unit["Service"]
    words = service["ExecStart"].split()
    name = words[words.index("manage.py") + 1]
    assert options_in(words) <= django_options()[name]
    patience = float(words[words.index("--shutdown-timeout") + 1])
    assert patience < float(service["TimeoutStopSec"])


def test_commands_of_flask() -> None:
    flask_group = flask_commands_of(NSQ())
    seen = set()
    for page, words in commands():
        if words[:1] == ["flask"] and "nsq" in words:
            name, *rest = words[words.index("nsq") + 1 :]
            command = flask_group.commands.get(name)
            if isinstance(command, click.Group):
                command = command.commands.get(rest[0])
            assert command is not None, f"{page}: flask nsq {name}"
            assert options_in(rest) <= options_of(command), f"{page}: {words}"
            seen.add(name)
    assert seen == set(flask_group.commands)


@pytest.mark.parametrize(
    "place", ["tests.bench.__main__", "tests.spark.kills", "tests.spark.cluster"]
)
def test_commands_of_the_checkout(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = place.removesuffix(".__main__")
    told: set[str] = set()
    found = False
    for _, words in commands():
        if words[:3] == ["python", "-m", module]:
            found = True
            told |= options_in(words[3:])
    assert found
    with pytest.raises(SystemExit):
        import_module(place).arguments(["--help"])
    assert told <= options_of_help(capsys.readouterr().out)


def test_extras_exist() -> None:
    known = set(project()["optional-dependencies"])
    told = set()
    for page in PAGES:
        for names in re.findall(r"(?:gnsqsync|[ '\"]\.)\[([\w,-]+)\]", page.read_text("utf-8")):
            told |= set(names.split(","))
    assert {"cli", "spark"} <= told <= known


def test_modules_that_are_run_exist() -> None:
    for page, words in commands():
        if "-m" in words and words[0].startswith("python"):
            module = words[words.index("-m") + 1]
            assert find_spec(module), f"{page}: python -m {module}"


def test_the_completion_of_each_shell() -> None:
    """The lines of the block, but for what the shell itself does with the script."""
    (block,) = code_blocks(DOCS / "guides" / "cli.rst", "bash")
    lines = re.findall(r"_GNSQSYNC_COMPLETE=(\w+)_source gnsqsync", block)
    assert lines == ["bash", "zsh", "fish"]
    completion = import_module("click.shell_completion")
    for shell in lines:
        kind = completion.get_completion_class(shell)
        assert (
            "_GNSQSYNC_COMPLETE"
            in kind(command_group, {}, "gnsqsync", "_GNSQSYNC_COMPLETE").source()
        )
