"""``gnsqsync cluster``: all servers start, and all end with the command or with one of them."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from gnsqsync import LookupdHTTP, Message, Reader, Writer
from tests.support.programs import Program
from tests.support.waiting import eventually

LINE = re.compile(r"^(nsqd|nsqlookupd|nsqadmin) +(\S+)(?:  (\S+))?$", re.MULTILINE)
READY = "Ctrl-C ends all of them"


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        program.kill()


def start(programs: list[Program], folder: Path, *flags: str) -> Program:
    """A cluster on free ports, when it is ready."""
    program = Program(["python", "-m", "gnsqsync.cli", "cluster", "--free-ports", *flags], folder)
    programs.append(program)
    program.wait_for(READY)
    return program


def children(program: Program) -> list[int]:
    listed = Path(f"/proc/{program.process.pid}/task/{program.process.pid}/children").read_text()
    return [int(pid) for pid in listed.split()]


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_addresses_that_are_printed_are_a_cluster(programs: list[Program], tmp_path: Path) -> None:
    program = start(programs, tmp_path, "--nsqds", "3")
    servers = LINE.findall(program.output)
    assert [name for name, *_ in servers] == ["nsqlookupd", "nsqd", "nsqd", "nsqd", "nsqadmin"]
    (_, _, lookupd), nsqd, *_, (_, admin, _) = servers
    writer_line = re.search(r'Writer\("(.*)"\)', program.output)
    reader_line = re.search(r'lookupd_http_addresses="(.*)"', program.output)
    assert writer_line is not None
    assert reader_line is not None
    assert (writer_line[1], f"http://{reader_line[1]}") == (nsqd[1], lookupd)
    with LookupdHTTP(lookupd) as http:
        eventually(lambda: len(http.nodes()) == 3)
    got: list[bytes] = []
    with Writer(writer_line[1]) as writer:
        writer.publish("orders", "one")

    def handler(message: Message) -> None:
        got.append(message.body)

    with Reader(
        "orders", "c", handler, lookupd_http_addresses=reader_line[1], lookupd_poll_interval=0.1
    ):
        eventually(lambda: got == [b"one"])
    assert "orders" in requests.get(admin, timeout=60).text
    program.signal(signal.SIGINT)
    program.end()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_all_end_with_it(programs: list[Program], tmp_path: Path, number: signal.Signals) -> None:
    program = start(programs, tmp_path, "--no-admin")
    pids = children(program)
    assert len(pids) == 3
    program.signal(number)
    program.end()
    assert not any(map(lives, pids))


def test_all_end_when_it_is_killed(programs: list[Program], tmp_path: Path) -> None:
    program = start(programs, tmp_path)
    pids = children(program)
    assert len(pids) == 4
    program.signal(signal.SIGKILL)
    program.process.wait()
    eventually(lambda: not any(map(lives, pids)))


@pytest.mark.parametrize("which", [0, 1, -1])
def test_all_end_with_one_of_them(programs: list[Program], tmp_path: Path, which: int) -> None:
    program = start(programs, tmp_path)
    pids = children(program)
    os.kill(pids[which], signal.SIGKILL)
    text = program.end(1)
    name = {0: "nsqlookupd", 1: "nsqd", -1: "nsqadmin"}[which]
    assert f"Error: {name} has ended with exit code -9, so all do" in text
    assert not any(map(lives, pids))


def test_messages_are_kept_with_a_data_path(programs: list[Program], tmp_path: Path) -> None:
    flags = ("--no-admin", "--nsqds", "1", "--mem-queue-size", "0", "--data-path", "data")
    for published in (True, False):
        program = start(programs, tmp_path, *flags)
        nsqd = {name: tcp for name, tcp, _ in LINE.findall(program.output)}["nsqd"]
        if published:
            with Writer(nsqd) as writer:
                writer.publish("orders", "kept")
        else:
            with Reader("orders", "c", nsqd_tcp_addresses=nsqd) as reader:
                message = next(iter(reader))
                assert message.body == b"kept"
                message.finish()
        program.signal(signal.SIGTERM)
        program.end()
    assert (tmp_path / "data" / "nsqd-1" / "nsqd.dat").exists()


def test_a_port_that_is_taken(programs: list[Program], tmp_path: Path) -> None:
    try:
        listener = socket.create_server(("127.0.0.1", 4160))
    except OSError:
        # Whoever has it serves as well.
        listener = socket.socket()
    with listener:
        program = Program(["python", "-m", "gnsqsync.cli", "cluster", "--no-admin"], tmp_path)
        programs.append(program)
        (line,) = program.end(1).splitlines()
    assert line == (
        "Error: nsqlookupd did not start: listen (127.0.0.1:4160) failed - address already in use."
        " --free-ports takes others."
    )
