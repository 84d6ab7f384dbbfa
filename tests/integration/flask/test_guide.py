"""The guide to Flask names every option and every key; its application is in test_quickstarts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gnsqsync.flask.config import KEYS
from tests.integration.conftest import address
from tests.integration.flask.conftest import Flask
from tests.support.servers import Server
from tests.support.texts import DOCS, files_of

GUIDE = DOCS / "guides" / "flask.rst"


def section(title: str, next_title: str) -> str:
    text = GUIDE.read_text(encoding="utf-8")
    return text.split(f"\n{title}\n")[1].split(f"\n{next_title}\n")[0]


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, nsqd: Server) -> None:
    """The application of the guide, with the nsqd of these tests."""
    for name, text in files_of(GUIDE).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("127.0.0.1:4150", address(nsqd)))


def test_every_option_of_the_command_is_in_the_guide(flask: Flask) -> None:
    help_text = flask("--app", "shop", "nsq", "consume", "--help").end()
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
