"""Tables of options against the functions that take the values, and against both parsers."""

from __future__ import annotations

import argparse
import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click
import pytest

from gnsqsync import Reader, Writer
from gnsqsync.cluster.looking import Question
from gnsqsync.commands.letter_actions import ACTIONS, options_of
from gnsqsync.commands.options import (
    CONSUME,
    DOCTOR,
    HEALTH,
    JSON,
    PUBLISH,
    RELAY,
    SELECTION,
    Option,
    consume_options,
)
from gnsqsync.commands.options_click import as_click, click_parameters
from gnsqsync.outbox.relay import Relay
from gnsqsync.process.probe import ask_health
from tests.support.texts import ROOT

TABLES = {
    "consume": CONSUME,
    "consume of a framework": consume_options("@handler"),
    "doctor": DOCTOR,
    "health": HEALTH,
    "publish": PUBLISH,
    "relay": RELAY,
    "selection": SELECTION,
    **{action: {one.name: one for one in options_of(action)} for action in ACTIONS},
}
OPTIONS = {
    f"{title} {option.flag}": option for title, table in TABLES.items() for option in table.values()
}
LIMITED = {name: option for name, option in OPTIONS.items() if option.low is not None}


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not one.empty}


def check_defaults(table: Mapping[str, Option], function: Callable[..., Any]) -> set[str]:
    """Compare the defaults of the options that the function has, too. Return their names."""
    of_function = defaults_of(function)
    shared = table.keys() & of_function.keys()
    for name in shared:
        assert (name, table[name].default) == (name, of_function[name])
    return shared


def test_defaults_of_a_relay() -> None:
    assert check_defaults(RELAY, Relay) == {"batch", "max_attempts", "rate"}
    assert check_defaults(RELAY, Relay.run) == {"interval"}


def test_defaults_of_the_relay_of_sqlalchemy() -> None:
    outbox = pytest.importorskip("gnsqsync.contrib.sqlalchemy", reason="needs SQLAlchemy")
    assert check_defaults(RELAY, outbox.Outbox.relay) == {"batch", "max_attempts", "rate"}


def test_defaults_of_the_doctor() -> None:
    assert check_defaults(DOCTOR, Question) == DOCTOR.keys()


def test_defaults_of_a_question_about_health() -> None:
    of_function = defaults_of(ask_health)
    of_flags = {name: one.default or False for name, one in HEALTH.items()}
    assert of_flags == of_function


def test_defaults_of_consumers_and_publishers() -> None:
    assert check_defaults({"concurrency": CONSUME["concurrency"]}, Reader) == {"concurrency"}
    assert CONSUME["shutdown_timeout"].default == defaults_of(Reader.stop)["timeout"]
    assert f"Default: {defaults_of(Writer)['publish_timeout']:g}." in PUBLISH["timeout"].help


def sentences() -> Iterator[tuple[str, str]]:
    """Yield each sentence that the package says of an option, with its place."""
    for path in (ROOT / "gnsqsync").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            told = [one.value for one in node.keywords if one.arg == "help"]
            if isinstance(node.func, ast.Name) and node.func.id == "Option":
                told += node.args[1:2]
            # A sentence below ``add_argument("topic")`` is of no option.
            first = node.args[0] if node.args else None
            is_word = isinstance(first, ast.Constant) and "-" not in str(first.value)
            for text in told:
                is_argument = is_word and isinstance(node.func, ast.Attribute)
                if isinstance(text, ast.Constant) and not is_argument:
                    yield str(text.value), f"{path.relative_to(ROOT)}:{node.lineno}"


def test_no_sentence_on_an_option_stands_twice() -> None:
    places: dict[str, list[str]] = {}
    for text, place in sentences():
        places.setdefault(text, []).append(place)
    assert "Start again when a Python file changes." in places
    assert "One JSON object." in places
    assert {text: found for text, found in places.items() if len(found) > 1} == {}


def argparse_of(option: Option) -> Callable[[list[str]], Any]:
    command = pytest.importorskip("gnsqsync.django.command", reason="needs Django")
    parser = argparse.ArgumentParser(exit_on_error=False)
    command.add_options(parser, [option])
    name = option.name
    return lambda words: getattr(parser.parse_args(words), name)


def click_of(option: Option) -> Callable[[list[str]], Any]:
    command = click.Command("x", params=click_parameters([option]))
    name = option.dest or option.name
    # click takes the words out of its list.
    return lambda words: command.make_context("x", [*words]).params[name]


def as_shown(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_both_parsers_give_the_same_value(option: Option) -> None:
    by_argparse, by_click = argparse_of(option), click_of(option)
    words = [option.flag] if option.kind is bool else [option.flag, "3"]
    value: Any = True if option.kind is bool else option.kind("3")
    assert by_argparse(words) == as_shown(by_click(words)) == ([value] if option.repeats else value)
    none: Any = [] if option.repeats else False if option.kind is bool else option.default
    assert by_argparse([]) == as_shown(by_click([])) == none


@pytest.mark.parametrize("option", LIMITED.values(), ids=LIMITED)
def test_both_parsers_refuse_a_number_below_the_least(option: Option) -> None:
    assert option.low is not None
    below = [option.flag, f"{option.low - 1:g}"]
    with pytest.raises(click.BadParameter, match="is not in the range"):
        click_of(option)(below)
    if option.kind is int:  # Commands of Django check a float themselves.
        with pytest.raises(argparse.ArgumentError, match=r"is below \d"):
            argparse_of(option)(below)


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_a_sentence_shows_the_default_of_the_table(option: Option) -> None:
    assert "{" not in option.text
    assert option.text.endswith(".")


def help_of(option: Option, **more: Any) -> str:
    @click.command()
    @as_click(option, **more)
    def command(**_: Any) -> None: ...

    return " ".join(command.get_help(click.Context(command)).split())


def test_the_command_line_shows_defaults_in_brackets() -> None:
    shown = help_of(HEALTH["timeout"])
    assert "--timeout SECONDS Longest wait for an answer. [default: 5.0]" in shown
    assert help_of(CONSUME["hard_time_limit"]).count("its place. [default: no limit]") == 1
    assert "-j, --json" in help_of(JSON, short="-j")
    assert "Only this" in help_of(JSON, help="Only this")
