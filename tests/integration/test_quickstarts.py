"""The three quickstarts, copied letter by letter into a new folder, beside a real nsqd.

In the second ring with the packages of the tests and ports of the kernel's choice; in the third as
a newcomer does it: a new environment, a clean checkout, the usual ports.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gnsqsync import NsqdHTTP
from tests.integration.conftest import address, url
from tests.support.programs import Program
from tests.support.servers import Server, Site
from tests.support.texts import DOCS, ROOT
from tests.support.waiting import eventually

# Of each page: up to which title one copies, and from which on again.
PAGES = {
    "quickstart": (None, None),
    "guides/django": ("Settings", "Tests"),
    "guides/flask": ("Config", "Tests"),
}
# What goes on until Ctrl-C, and how it says that it has begun.
SERVES = re.compile(r"nsqd( --data-path=\w+)?$|tail |nsq_relay$|consume|runserver| run ")
READY = r"TCP: listening on|consumes |subscribed at|publishing the outbox|http://127\.0\.0\.1:[1-9]"
INSTALLS = re.compile(
    r"mkdir (\w+) && cd \1$"
    r"|python3 -m venv \.venv && \. \.venv/bin/activate$"
    r'|pip install "\.\./gnsqsync\[\w+\]"( pytest)?$'
)
# A command that asks what is, once, and changes nothing.
LOOKS = re.compile(r"curl -s http")
USUAL_ADDRESS = "127.0.0.1:4150"


class Block(NamedTuple):
    """One code block: its language, its caption or "", its text."""

    language: str
    caption: str
    text: str


def blocks_in(text: str) -> list[Block]:
    return [
        Block(language, caption, textwrap.dedent(block).strip())
        for language, caption, block in re.findall(
            r"^\.\. code-block:: (\w+)\n(?:   :caption: (\S+)\n)?\n((?:(?:   .*)?\n)+)",
            text + "\n",
            re.MULTILINE,
        )
    ]


def blocks_of(page: str) -> list[Block]:
    text = (DOCS / f"{page}.rst").read_text(encoding="utf-8")
    until, again = PAGES[page]
    parts = [text]
    if until is not None:
        parts = [re.split(rf"\n{until}\n-+\n", text)[0], re.split(rf"\n{again}\n-+\n", text)[1]]
    found = []
    for part in parts:
        here = blocks_in(part)
        # A test is written before it is run, wherever the page names its command.
        found += sorted(here, key=lambda b: not b.caption) if part is not parts[0] else here
    return found


class Newcomer:
    """Somebody who copies a page into a folder, with several terminals at hand."""

    nsqd_http_address: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._outputs = folder / "terminals"
        self._outputs.mkdir()
        self._terminals: list[Program] = []
        self._last = ""

    def spell(self, text: str) -> str:
        """A command or a file, as it is entered here."""
        return text

    def environment(self) -> dict[str, str]:
        raise NotImplementedError

    def read(self, block: Block) -> None:
        if block.caption:
            path = self.folder / block.caption
            # "At the end of the settings"; every other file is the whole of it.
            before = path.read_text() if path.name == "settings.py" else ""
            path.write_text(f"{before}{self.spell(block.text)}\n")
        elif block.language == "console":
            for line in block.text.splitlines():
                assert line.startswith("$ "), line
                self.enter(line.removeprefix("$ "))
        else:
            assert block.language == "text"
            self.expect(block.text.splitlines())

    def enter(self, command: str) -> None:
        self._last = command
        script = f"cd {self.folder} && {self.spell(command)}"
        program = Program(["bash", "-c", script], self._outputs, self.environment())
        self._terminals.append(program)
        if not SERVES.search(command):
            program.end(timeout=100)
        elif "tail" in command:
            program.eventually(self._somebody_reads_greetings)
        else:
            program.wait_for(READY)

    def _somebody_reads_greetings(self) -> bool:
        with NsqdHTTP(self.nsqd_http_address) as http:
            return any(topic.channels for topic in http.stats("greetings").topics)

    @property
    def screens(self) -> str:
        return "\n".join(terminal.output for terminal in self._terminals)

    def expect(self, lines: list[str]) -> None:
        """Wait until each line is on some screen; look again where the last command only looks."""

        def are_there() -> bool:
            if all(line in self.screens for line in lines):
                return True
            if LOOKS.match(self._last):
                self.enter(self._last)
            return False

        eventually(are_there, describe=lambda: f"not all of {lines} in\n{self.screens}")

    def leave(self) -> None:
        """Ctrl-C in each terminal where something runs, the last one first."""
        for terminal in reversed(self._terminals):
            if terminal.process.poll() is None:
                os.killpg(terminal.process.pid, signal.SIGINT)
                terminal.process.wait(60)
        self.check_screens()

    def check_screens(self) -> None:
        assert "Traceback" not in self.screens, self.screens

    def close(self) -> None:
        for terminal in self._terminals:
            terminal.kill()


class Here(Newcomer):
    """With what the tests have: nothing to install, an nsqd at some port."""

    def __init__(self, folder: Path, nsqd: Server) -> None:
        super().__init__(folder)
        self.nsqd_http_address = url(nsqd)
        self._nsqd = address(nsqd)

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return {"PYTHONUNBUFFERED": "1", "PATH": path}

    def enter(self, command: str) -> None:
        if not INSTALLS.match(command) and command != "gnsqsync nsqd":
            super().enter(command)

    def spell(self, text: str) -> str:
        text = text.replace(USUAL_ADDRESS, self._nsqd)
        text = re.sub(r"gnsqsync (?:tail|pub) \w+", rf"\g<0> --nsqd-tcp-address {self._nsqd}", text)
        text = text.replace("--once", f"--once --nsqd-http-address {self.nsqd_http_address}")
        text = text.replace("runserver 127.0.0.1:8000", "runserver 127.0.0.1:0")
        text = text.replace("--port 5000", "--port 0")
        if text.startswith("curl"):
            (port,) = set(re.findall(r"http://127\.0\.0\.1:([1-9]\d*)", self.screens))
            text = re.sub(r":[58]000/", f":{port}/", text)
        return text


class Fresh(Newcomer):
    """With a Python alone, beside a clean checkout."""

    nsqd_http_address = "127.0.0.1:4151"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        subprocess.run(["git", "clone", "-q", str(ROOT), str(folder / "gnsqsync")], check=True)

    def environment(self) -> dict[str, str]:
        # The Python that the one of the tests was made of.
        places = [os.path.realpath(sys.base_prefix) + "/bin", "/usr/local/bin", "/usr/bin", "/bin"]
        # What ". .venv/bin/activate" does in each terminal.
        if (activated := self.folder / ".venv" / "bin").exists():
            places.insert(0, str(activated))
        return {"PATH": os.pathsep.join(places), "PYTHONPATH": "", "PYTHONUNBUFFERED": "1"}

    def enter(self, command: str) -> None:
        super().enter(command)
        if made := re.match(r"mkdir (\w+) && cd \1$", command):
            self.folder /= made[1]


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> Iterator[str]:
    return request.param


def copy(newcomer: Newcomer, page: str) -> None:
    blocks = blocks_of(page)
    assert {block.language for block in blocks} >= {"console", "python", "text"}
    try:
        for block in blocks:
            newcomer.read(block)
        newcomer.leave()
    finally:
        newcomer.close()


@pytest.mark.parametrize("server_kind", ["real"])
def test_outcomes_are_those_of_the_page(page: str, tmp_path: Path, site: Site) -> None:
    copy(Here(tmp_path, site.own_nsqd()), page)


def skip_without_ports(*ports: int) -> None:
    """Skips the test when somebody has one of these ports."""
    for port in ports:
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                pytest.skip(f"somebody has port {port}")


@pytest.mark.timeout(600)
def test_newcomer_comes_to_the_end_of_the_page(page: str, tmp_path: Path) -> None:
    skip_without_ports(4150, 4151, 5000, 8000)
    copy(Fresh(tmp_path), page)
