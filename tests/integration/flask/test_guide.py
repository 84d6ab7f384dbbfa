"""The guide to Flask names every option and every key; its application is in test_quickstarts."""

from __future__ import annotations

import re

import click

from gnsqsync.flask import NSQ
from gnsqsync.flask.commands import commands_of
from gnsqsync.flask.config import KEYS
from tests.support.texts import DOCS

GUIDE = DOCS / "guides" / "flask.rst"


def section(title: str, next_title: str) -> str:
    text = GUIDE.read_text(encoding="utf-8")
    return text.split(f"\n{title}\n")[1].split(f"\n{next_title}\n")[0]


def test_every_option_of_the_command_is_in_the_guide() -> None:
    consume = commands_of(NSQ()).commands["consume"]
    help_text = consume.get_help(click.Context(consume, info_name="consume"))
    known = set(re.findall(r"^  (--[\w-]+)", help_text, re.M))
    told = set(
        re.findall(
            r"``(--[\w-]+)``", section("flask nsq consume", "publish, stat and dead-letters")
        )
    )
    assert told == known - {"--help"}


def test_every_key_of_the_config_is_in_the_guide() -> None:
    rows = re.findall(r"^``(NSQ_[A-Z_]+)``  ", section("Config", "Publish"), re.MULTILINE)
    assert rows == list(KEYS)
