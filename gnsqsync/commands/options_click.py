"""Tables of options as options of click. Knows click. Knows no single option."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

import click

from gnsqsync.commands.options import Option

__all__ = ["Number", "as_click", "click_parameters"]

Command = TypeVar("Command", bound=Callable[..., Any])


class Number(click.FloatRange):
    """A range of floats that refuses nan, which click accepts in every range."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            low = f"more than {self.min:g}" if self.min_open else f"{self.min:g} or more"
            self.fail(f"{value!r} is not a number; allowed is {low}", param, ctx)
        return number


def _names(option: Option) -> list[str]:
    return [option.flag, option.dest or option.name]


def _attributes(option: Option, show_default: bool) -> dict[str, Any]:
    if option.kind is bool:
        return {"is_flag": True, "help": option.text}
    kind: Any = option.kind
    if option.low is not None:
        kind = Number(option.low) if kind is float else click.IntRange(int(option.low))
    attributes = {
        "default": option.default,
        "multiple": option.repeats,
        "type": kind,
        "metavar": option.metavar,
        "help": option.text,
    }
    if show_default and option.default is not None:
        attributes["show_default"] = True
    elif show_default:
        # "no limit" and the like, in brackets as click shows a value.
        attributes["help"] = re.sub(r"Default: (.+)\.$", r"[default: \1]", option.text)
    return attributes


def as_click(*options: Option, short: str = "", **more: Any) -> Callable[[Command], Command]:
    """Return a decorator that adds the options to a command, with their defaults in brackets.

    ``short``: a further name. ``more``: attributes of click in place of those of the table.
    """

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            attributes = {**_attributes(option, show_default=True), **more}
            command = click.option(*_names(option), *filter(None, [short]), **attributes)(command)
        return command

    return decorate


def click_parameters(
    options: Iterable[Option], show_default: Collection[str] = ()
) -> list[click.Parameter]:
    """Return the options for a command that is made without decorators.

    ``show_default``: names of the options after whose sentence click writes the default.
    """
    return [
        click.Option(_names(option), **_attributes(option, option.name in show_default))
        for option in options
    ]
