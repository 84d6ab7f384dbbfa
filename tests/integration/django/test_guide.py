"""The guide to Django, copied letter by letter into a fresh project."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests

from gnsqsync.django.config import KEYS
from gnsqsync.embedded import Nsqd
from tests.integration.django.conftest import Project
from tests.support.servers import ROOT
from tests.support.texts import DOCS

GUIDE = DOCS / "guides" / "django.rst"
# What the guide calls an nsqd; here it is the one of the tests.
USUAL_ADDRESS = "127.0.0.1:4150"


def files_of_the_guide() -> dict[str, str]:
    """The code blocks that have a path as their caption."""
    found = {}
    for path, block in re.findall(
        r"^\.\. code-block:: python\n   :caption: (\S+)\n\n((?:(?:   .*)?\n)+)",
        GUIDE.read_text(encoding="utf-8"),
        re.MULTILINE,
    ):
        found[path] = re.sub("^   ", "", block, flags=re.MULTILINE).strip() + "\n"
    return found


def commands_of_the_guide() -> list[str]:
    return re.findall(r"^   \$ (.*)$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)


class Shop:
    """The project of the guide; its commands are started as they stand there."""

    def __init__(self, folder: Path, nsqd: Nsqd) -> None:
        self.folder = folder
        self._nsqd = nsqd
        self._commands = commands_of_the_guide()
        self._running: list[subprocess.Popen[bytes]] = []

    def write(self) -> None:
        for name, text in files_of_the_guide().items():
            path = self.folder / name
            text = text.replace(USUAL_ADDRESS, self._nsqd.tcp_address)
            # "At the end of the settings"; everything else is the whole file.
            before = path.read_text() if name.endswith("settings.py") else ""
            path.write_text(before + text)

    def start(self, command: str, port: str = "") -> subprocess.Popen[bytes]:
        """One of the guide's commands; ``port`` instead of the one that it names."""
        assert command in self._commands, command
        words = command.split()
        programs = {"python": [sys.executable], "django-admin": [sys.executable, "-m", "django"]}
        with open(self.folder / "output", "ab") as output:
            process = subprocess.Popen(
                [*programs[words[0]], *(w.replace(":8000", port or ":8000") for w in words[1:])],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # As of a session of its own: the reloader of runserver has a child.
                start_new_session=True,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "PYTHONUNBUFFERED": "1",
                },
            )
        self._running.append(process)
        return process

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text()

    def run(self, command: str) -> None:
        assert self.start(command).wait(60) == 0, self.output

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Until the output of some command has a match."""
        return self.eventually(lambda: re.search(pattern, self.output))

    def eventually(self, look: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + 30
        while not (result := look()):
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)
        return result

    def close(self) -> None:
        for process in self._running:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    # Its own, as the guide's topic is everybody's first choice.
    with Nsqd() as nsqd:
        shop = Shop(tmp_path, nsqd)
        yield shop
        shop.close()


def test_the_project_of_the_guide(shop: Shop) -> None:
    shop.run("django-admin startproject mysite .")
    shop.run("python manage.py startapp shop")
    shop.write()
    shop.run("python manage.py makemigrations shop")
    shop.run("python manage.py migrate")
    consumer = shop.start("python manage.py nsq_consume --reload")
    shop.start("python manage.py runserver 127.0.0.1:8000", ":0")
    shop.wait_for("shop.pack consumes orders/warehouse")
    port = shop.wait_for(r"http://127\.0\.0\.1:([1-9]\d*)/")[1]
    # The curl of the guide.
    answer = requests.post(f"http://127.0.0.1:{port}/orders/", data={"article": "tea"}, timeout=30)
    assert (answer.status_code, answer.json()) == (202, {"order": 1})
    with closing(sqlite3.connect(shop.folder / "db.sqlite3", timeout=30)) as database:
        packed = "SELECT article FROM shop_order WHERE is_packed"
        shop.eventually(lambda: database.execute(packed).fetchall() == [("tea",)])
    consumer.send_signal(signal.SIGTERM)
    shop.run("python manage.py test")
    assert "Ran 1 test" in shop.output
    assert consumer.wait(30) == 0, shop.output


# Of every command of Django.
COMMON = {"--help", "--version", "--verbosity", "--settings", "--pythonpath", "--traceback"}
COMMON |= {"--no-color", "--force-color", "--skip-checks"}


@pytest.mark.parametrize(
    ("command", "title", "next_title"),
    [
        ("nsq_consume", "manage.py nsq_consume", "nsq_publish and nsq_stat"),
        ("nsq_relay", "The outbox", "Tests"),
    ],
)
def test_every_option_of_a_command_is_in_the_guide(
    project: Project, command: str, title: str, next_title: str
) -> None:
    known = set(
        re.findall(r"^  (?:-\w, )?(--[\w-]+)", project.manage(command, "--help").end(), re.M)
    )
    text = GUIDE.read_text(encoding="utf-8")
    section = text.split(f"\n{title}\n")[1].split(f"\n{next_title}\n")[0]
    told = set(re.findall(r"``(--[\w-]+)``", section))
    assert told == known - COMMON


def test_every_key_of_the_settings_is_in_the_guide() -> None:
    section = GUIDE.read_text(encoding="utf-8").split("\nSettings\n")[1].split("\nPublish\n")[0]
    assert tuple(re.findall(r"^``([A-Z_]+)``  ", section, re.MULTILINE)) == KEYS
