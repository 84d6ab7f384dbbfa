"""The tutorial, followed letter by letter in a new folder, with several terminals.

In the second ring with the packages of the tests and ports of the kernel's choice; in the third
with a new environment, a clean checkout and the usual ports.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from gnsqsync import NsqdHTTP
from tests.integration.test_quickstarts import (
    Block,
    Fresh,
    Newcomer,
    blocks_in,
    skip_without_ports,
)
from tests.support.ports import free_ports
from tests.support.texts import DOCS
from tests.support.waiting import eventually

PARTS = ("publish", "consume", "failures", "watch")
USUAL_PORTS = ("4150", "4151", "8000", "9150")
INSTALLS = re.compile(r"mkdir teashop &&|python3 -m venv |pip install ")
# The id of a dead letter that the page shows.
SHOWN_ID = "18a62eb3e3669000"


class Follower(Newcomer):
    """Somebody who follows all parts; each further terminal begins in the folder of the project."""

    ports: dict[str, int]
    exported: dict[str, str]

    def here(self, usual: str) -> str:
        return f"127.0.0.1:{self.ports[usual]}"

    def spell(self, text: str) -> str:
        if SHOWN_ID in text:
            rows = re.findall(r"(\w{16}) +\d+ +orders/warehouse", self.screens)
            text = text.replace(SHOWN_ID, rows[-1])
        return text

    def read(self, block: Block) -> None:
        consumers = self._consumers_begun()
        super().read(block)
        if block.caption and consumers and self._is_running():
            # "it has begun again with the new file"
            eventually(lambda: self._consumers_begun() > consumers)
        if block.caption == "teashop/urls.py" and self._is_running():
            # runserver begins again by itself, too.
            eventually(lambda: self._site_has("/nsq/"))

    def _is_running(self) -> bool:
        return any(terminal.process.poll() is None for terminal in self._terminals)

    def _consumers_begun(self) -> int:
        return self.screens.count("orders.pack consumes orders/warehouse")

    def _site_has(self, path: str) -> bool:
        try:
            page = requests.get(f"http://{self.here('8000')}{path}", timeout=60)
        except requests.RequestException:
            return False
        return page.status_code == 200

    def enter(self, command: str) -> None:
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.exported[name] = value
        else:
            super().enter(command)

    def check_screens(self) -> None:
        """Each traceback is of what part 3 lets fail, in the log and as a dead letter."""
        errors = re.findall(r"^Traceback .*\n(?:  .*\n)+(.*)$", self.screens, re.MULTILINE)
        assert set(errors) <= {"KeyError: 'oolong'"}, self.screens

    def expect(self, lines: list[str]) -> None:
        """A line of the log is shown without its time and names."""
        super().expect([line.strip() for line in lines])


class Here(Follower):
    """With what the tests have: nothing to install, and ports that are free."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        super().__init__(folder)
        self.ports = ports
        self.exported = {}

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return {"PYTHONUNBUFFERED": "1", "PATH": path, **self.exported}

    def enter(self, command: str) -> None:
        if not INSTALLS.match(command):
            super().enter(command)

    def spell(self, text: str) -> str:
        text = re.sub(
            r"(?<=127\.0\.0\.1:)(\d{4})\b",
            lambda usual: str(self.ports[usual[0]]),
            super().spell(text),
        )
        addresses = f"--tcp-address={self.here('4150')} --http-address={self.here('4151')}"
        return text.replace("gnsqsync nsqd", f"gnsqsync nsqd {addresses}")


class Clean(Fresh, Follower):
    """With a Python alone, beside a clean checkout."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ports = {usual: int(usual) for usual in USUAL_PORTS}
        self.exported = {}

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **self.exported}


def follow(reader: Follower) -> None:
    try:
        for part in PARTS:
            before = reader.screens
            for block in blocks_in((DOCS / "tutorial" / f"{part}.rst").read_text(encoding="utf-8")):
                reader.read(block)
            after_part(reader, part, reader.screens.removeprefix(before))
        reader.leave()
    finally:
        reader.close()


def after_part(reader: Follower, part: str, shown: str) -> None:
    """What the text of a part says, and no block."""
    with NsqdHTTP(reader.here("4151")) as nsqd:
        if part == "publish":
            (topic,) = nsqd.stats("orders").topics
            assert (topic.depth, topic.channels) == (1, ())
            assert re.search(r"orders\b.*\b1\b", shown)
            reader.leave()
        elif part == "failures":
            assert "Traceback" in shown and '{"order": 3}' in shown
            letters = [t for t in nsqd.stats().topics if t.topic_name == "orders-dead"]
            assert sum(c.depth + c.in_flight_count for c in letters[0].channels) == 0
        elif part == "watch":
            assert "\nalive\n" in shown
            looks_at_the_pages(reader)


def looks_at_the_pages(reader: Follower) -> None:
    site = f"http://{reader.here('8000')}"
    with requests.Session() as browser:
        login = browser.get(f"{site}/nsq/", timeout=60)
        assert "/admin/login/" in login.url
        browser.post(
            login.url,
            data={
                "username": "ann",
                "password": "darjeeling",
                "csrfmiddlewaretoken": browser.cookies["csrftoken"],
            },
            headers={"Referer": login.url},
            timeout=60,
        ).raise_for_status()
        assert "orders" in browser.get(f"{site}/nsq/", timeout=60).text
        channel = browser.get(f"{site}/nsq/api/topics/orders/warehouse", timeout=60).json()
        assert (channel["depth"], channel["client_count"]) == (0, 1)
        letters = browser.get(f"{site}/dead-letters/", timeout=60)
        assert letters.status_code == 200 and "oolong" not in letters.text


@pytest.fixture
def ports() -> Iterator[dict[str, int]]:
    """Yield a free port in place of each usual one."""
    with free_ports(len(USUAL_PORTS)) as found:
        yield dict(zip(USUAL_PORTS, found, strict=True))


@pytest.mark.timeout(300)
def test_the_tutorial(tmp_path: Path, ports: dict[str, int]) -> None:
    follow(Here(tmp_path, ports))


@pytest.mark.timeout(600)
def test_the_tutorial_in_a_clean_folder(tmp_path: Path) -> None:
    skip_without_ports(*map(int, USUAL_PORTS))
    follow(Clean(tmp_path))
