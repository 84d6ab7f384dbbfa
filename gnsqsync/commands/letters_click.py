"""The commands on dead letters for programs that use click: parameters, help, terminal."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

from gnsqsync.commands.letter_actions import ABOUT, ACTIONS, Terminal, options_of, run
from gnsqsync.commands.options import YES
from gnsqsync.commands.options_click import as_click, click_parameters
from gnsqsync.dead_letters import DeadLetters
from gnsqsync.errors import ConfigError
from gnsqsync.process.output import mention, say, told_when_full

__all__ = ["dead_letter_command", "run_in_terminal"]

_EXITS = {
    "list": "0 done; 1 an nsqd could not be looked at, or there is no such topic",
    "show": "0 shown; 1 there is no such letter",
    "requeue": "0 done; 1 a letter or an nsqd failed",
    "purge": "0 done; 1 a letter or an nsqd failed, or the answer was no",
}


def dead_letter_command(
    action: str,
    callback: Callable[..., object],
    program: str,
    more: Sequence[Callable[[Any], Any]] = (),
) -> click.Command:
    """Return the command of one of ACTIONS. ``callback`` gets all parameters by name.

    ``program``: the words before the action, for examples. ``more``: decorators that add options.
    """
    parameters: list[click.Parameter] = [click.Argument(["topic"])]
    if action == "show":
        parameters.append(click.Argument(["id_"], metavar="ID"))
    parameters += click_parameters(options_of(action))
    examples = "\b\nExample: " + "\n         ".join(
        f"{program} {action} {words}" for words in _EXAMPLES[action]
    )

    def call(**given: Any) -> object:
        return callback(**given)

    decorated: Any = call
    for decorate in reversed(more):
        decorated = decorate(decorated)
    if action == "purge":
        decorated = as_click(YES, short="-y")(decorated)
    return click.command(
        action,
        params=parameters,
        help=f"{ACTIONS[action]}\n\n{ABOUT}",
        epilog=f"{examples}\n\nExit codes: {_EXITS[action]}; 2 wrong usage.",
        short_help=f"{re.split('[:,.]', ACTIONS[action])[0]}.",
    )(decorated)


_EXAMPLES = {
    "list": ("orders.dead", "orders.dead --reason Timeout --newer-than 2h --json"),
    "show": ("orders.dead 0d2b6c1f7a3e4000",),
    "requeue": (
        "orders.dead --reason Timeout --dry-run",
        "orders.dead --reason Timeout --rate 50",
        "old.dead --to orders",
    ),
    "purge": ("orders.dead --older-than 30d",),
}


def run_in_terminal(
    action: str,
    make: Callable[..., DeadLetters],
    id_: str = "",
    yes: bool = False,
    **given: Any,
) -> int:
    """Call ``run()`` with the input and output of this process. Return the exit code."""
    if action == "purge" and not (yes or given["dry_run"] or _is_terminal(sys.stdin)):
        raise ConfigError("purge asks before, and this is not a terminal; give --yes")
    terminal = Terminal(
        # If the output's reader left, a listing ends, but work goes on.
        say=_say if action in ("list", "show") else partial(say, sys.stdout),
        tell=partial(mention, sys.stderr),
        confirm=lambda question: click.confirm(question, err=True),
        width=shutil.get_terminal_size().columns if _is_terminal(sys.stdout) else None,
    )
    return run(action, make, given, terminal, id=id_, yes=yes)


def _say(line: str) -> None:
    with told_when_full(sys.stdout):
        click.echo(line)
        sys.stdout.flush()


def _is_terminal(file: Any) -> bool:
    return file is not None and file.isatty()
