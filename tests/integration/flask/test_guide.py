"""The guide to Flask, copied letter by letter into a fresh folder."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from gnsqsync import NsqdHTTP
from gnsqsync.flask.config import KEYS
from tests.integration.conftest import address, url
from tests.integration.flask.conftest import Flask
from tests.support.servers import ROOT, Server
from tests.support.texts import DOCS, commands_of, files_of

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


def test_the_application_of_the_guide(tmp_path: Path, flask: Flask, nsqd: Server) -> None:
    commands = [command.split() for command in commands_of(GUIDE)]

    def start(*words: str) -> list[str]:
        (command,) = (words_ for words_ in commands if words_ == ["flask", *words])
        return [word.replace("5000", "0") for word in command[1:]]

    consumer = flask(*start("--app", "shop", "nsq", "consume", "--reload"))
    site = flask(*start("--app", "shop", "run", "--port", "5000"))
    consumer.wait_for("pack consumes orders/warehouse")
    root = site.wait_for(r"http://127\.0\.0\.1:([1-9]\d*)")[0]
    # The curl of the guide.
    answer = requests.post(f"{root}/orders", data={"article": "tea"}, timeout=30)
    assert (answer.status_code, answer.json()) == (202, {"queued": True})
    consumer.wait_for("packing tea")
    consumer.signal(signal.SIGTERM)
    assert ["python", "-m", "pytest", "test_shop.py"] in commands
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_shop.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "1 passed" in done.stdout, done.stdout
    consumer.end()
    with NsqdHTTP(url(nsqd)) as http:
        http.delete_topic("orders")


def test_every_option_of_the_command_is_in_the_guide(flask: Flask) -> None:
    help_text = flask("--app", "shop", "nsq", "consume", "--help").end()
    known = set(re.findall(r"^  (--[\w-]+)", help_text, re.M))
    told = set(re.findall(r"``(--[\w-]+)``", section("flask nsq consume", "publish and stat")))
    assert told == known - {"--help"}


def test_every_key_of_the_config_is_in_the_guide() -> None:
    rows = re.findall(r"^``(NSQ_[A-Z_]+)``  ", section("Config", "Publish"), re.MULTILINE)
    assert rows == list(KEYS)
