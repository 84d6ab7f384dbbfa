"""``manage.py nsq_dead_letters``: list, show, requeue or purge the dead letters in a topic."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from gnsqsync.commands.letter_actions import ABOUT, ACTIONS, Terminal, options_of, run
from gnsqsync.commands.options import YES
from gnsqsync.dead_letters import DeadLetters
from gnsqsync.dead_letters.places import CHANNEL
from gnsqsync.django.command import NSQCommand, add_options
from gnsqsync.django.config import ALIAS, get_alias
from gnsqsync.errors import ConfigError
from gnsqsync.process.output import say

__all__ = ["Command"]


class Command(NSQCommand):
    help = (
        "List, show, requeue or purge the dead letters in a topic, at the nsqds that LOOKUPD lists,"
        " or those of NSQD_HTTP, or those of NSQD. Exit code 1: a letter or an nsqd failed, or"
        " there is no such topic."
    )

    def add_arguments(self, parser: Any) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        for action, text in ACTIONS.items():
            below = actions.add_parser(action, help=text, description=f"{text} {ABOUT}")
            below.add_argument("topic")
            if action == "show":
                below.add_argument("show_id", metavar="id")
            add_options(below, options_of(action))
            if action == "purge":
                add_options(below, (YES,))
            below.add_argument("--channel", default=CHANNEL, help="Take them from this channel.")
            add_options(below, (ALIAS,))

    def handle(self, **options: Any) -> None:
        action, yes = options["action"], bool(options.get("yes"))
        may_ask = sys.stdin is not None and sys.stdin.isatty()
        if action == "purge" and not (yes or options["dry_run"] or may_ask):
            raise CommandError("purge asks before, and this is not a terminal; give --yes")
        terminal = Terminal(
            say=partial(say, self.stdout),
            tell=lambda text: self.stderr.write(text, self.style.NOTICE),
            confirm=_confirm,
        )
        try:
            alias = get_alias(options["alias"])
            if alias.is_captured:
                raise ConfigError(f"GNSQSYNC[{alias.name!r}] reaches no nsqd here")
            make = partial(
                DeadLetters,
                options["topic"],
                options["channel"],
                **alias.dead_letters_keywords(),
            )
            code = run(action, make, options, terminal, id=options.get("show_id", ""), yes=yes)
        except (ConfigError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error
        if code:
            raise CommandError("not everything was done", returncode=code)


def _confirm(question: str) -> bool:
    sys.stderr.write(f"{question} [y/N]: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
