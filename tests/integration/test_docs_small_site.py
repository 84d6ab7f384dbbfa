"""The guide for the servers of a small site: its commands run, its files are valid."""

from __future__ import annotations

import configparser
import contextlib
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from gnsqsync import NsqdHTTP, Reader, Writer
from tests.integration.test_docs_deploy import verified
from tests.support.ports import free_ports
from tests.support.programs import Program
from tests.support.texts import DOCS, code_blocks
from tests.support.waiting import eventually

PAGE = DOCS / "guides" / "small-site.rst"
(COMPOSE,) = map(yaml.safe_load, code_blocks(PAGE, "yaml"))
SERVICES: dict[str, Any] = COMPOSE["services"]
UNITS = dict(
    zip(
        ("nsqlookupd.service", "nsqd.service", "nsqadmin.service"),
        code_blocks(PAGE, "ini"),
        strict=True,
    )
)
HTTP = {"nsqlookupd": 4161, "nsqd": 4151, "nsqadmin": 4171}


def of_unit(name: str) -> list[str]:
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(UNITS[f"{name}.service"])
    return shlex.split(found["Service"]["ExecStart"].replace("/srv/nsq/venv/bin/", ""))


COMMANDS = {
    "compose": {name: list(service["command"]) for name, service in SERVICES.items()},
    "systemd": {name: of_unit(name) for name in HTTP},
}


class Here:
    """The commands of the page on ports of this machine that are free."""

    def __init__(self, folder: Path, ports: dict[str, int]) -> None:
        self._folder = folder
        self._ports = ports
        self._programs: list[Program] = []

    def port(self, usual: int) -> int:
        return self._ports[str(usual)]

    def words(self, words: list[str]) -> list[str]:
        places = {
            "0.0.0.0": "127.0.0.1",
            "nsqlookupd:": "127.0.0.1:",
            "address=nsqd": "address=127.0.0.1",
            "=/data": f"={self._folder}/data",
            "=/var/lib/nsqd": f"={self._folder}/data",
        }
        found = []
        for word in words:
            for usual, here in places.items():
                word = word.replace(usual, here)
            found.append(re.sub(r"(?<=:)4\d{3}\b", lambda usual: str(self._ports[usual[0]]), word))
        return found

    def start(self, words: list[str], http_port: int) -> Program:
        """Until its page of /ping answers."""
        program, *arguments = self.words(words)
        assert program == "gnsqsync"
        self._programs.append(Program(["python", "-m", "gnsqsync.cli", *arguments], self._folder))
        self._programs[-1].eventually(lambda: answers(self.port(http_port)))
        return self._programs[-1]

    def close(self) -> None:
        for program in self._programs:
            program.kill()


def answers(port: int) -> bool:
    try:
        return requests.get(f"http://127.0.0.1:{port}/ping", timeout=60).text == "OK"
    except requests.RequestException:
        return False


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    (tmp_path / "data").mkdir()
    with contextlib.ExitStack() as stack:
        usual = ("4150", "4151", "4160", "4161", "4171")
        ports = dict(zip(usual, stack.enter_context(free_ports(len(usual))), strict=True))
        found = Here(tmp_path, ports)
        stack.callback(found.close)
        yield found


@pytest.mark.parametrize("kind", ["compose", "systemd"])
def test_the_servers_find_each_other_and_keep_their_messages(here: Here, kind: str) -> None:
    commands = COMMANDS[kind]
    running = {name: here.start(commands[name], HTTP[name]) for name in HTTP}
    nsqd, admin = f"127.0.0.1:{here.port(4150)}", f"http://127.0.0.1:{here.port(4171)}"

    def nodes() -> Any:
        return requests.get(f"{admin}/api/nodes", timeout=60).json()["nodes"]

    eventually(lambda: [node["tcp_port"] for node in nodes()] == [here.port(4150)])
    with Writer(nsqd) as writer:
        writer.publish_many("orders", ["one", "two"])
    with NsqdHTTP(f"127.0.0.1:{here.port(4151)}") as http:
        http.create_channel("orders", "archive")
        eventually(lambda: http.stats("orders").topics[0].channels[0].backend_depth == 2)
    for number in (signal.SIGKILL, signal.SIGTERM):
        running["nsqd"].signal(number)
        running["nsqd"].end(-9 if number == signal.SIGKILL else 0)
        running["nsqd"] = here.start(commands["nsqd"], HTTP["nsqd"])
    lookupd = f"127.0.0.1:{here.port(4161)}"
    with Reader("orders", "archive", lookupd_http_addresses=lookupd, max_in_flight=2) as reader:
        batch = next(reader.batches(2, 30.0))
        assert sorted(message.body for message in batch) == [b"one", b"two"]
        reader.finish(batch)
    for name in reversed(HTTP):
        running[name].signal(signal.SIGTERM)
        running[name].end()


@pytest.mark.parametrize("name", list(HTTP))
def test_the_health_checks(here: Here, name: str, tmp_path: Path) -> None:
    kind, program, *words = here.words(SERVICES[name]["healthcheck"]["test"])
    assert (kind, program) == ("CMD", "python")

    def check() -> int:
        folder = tmp_path / "check"
        folder.mkdir(exist_ok=True)
        asked = Program([sys.executable, *words], folder)
        return asked.process.wait(60)

    assert check() == 1
    server = here.start(COMMANDS["compose"][name], HTTP[name])
    assert check() == 0
    server.signal(signal.SIGTERM)
    server.end()


def test_the_page_of_nsqadmin_is_open_to_this_machine_only() -> None:
    assert SERVICES["nsqadmin"]["ports"] == ["127.0.0.1:4171:4171"]
    assert "ports" not in SERVICES["nsqd"]
    for name in HTTP:
        for word in COMMANDS["systemd"][name]:
            assert not re.search(r"--(tcp|http)-address=(?!127\.0\.0\.1:)", word)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_has_nothing_to_say(tmp_path: Path) -> None:
    units = {
        name: text.replace("/srv/nsq/venv/bin/", "/srv/shop/venv/bin/")
        for name, text in UNITS.items()
    }
    assert verified(tmp_path, units) == ""
