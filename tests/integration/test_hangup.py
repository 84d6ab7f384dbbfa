"""A closed terminal, ``kill -HUP`` and ``nohup``, for programs that run until they are stopped."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gnsqsync import NsqdHTTP
from tests.integration.conftest import address, url
from tests.support.programs import Program
from tests.support.servers import Server, unique

GNSQSYNC = ["python", "-m", "gnsqsync.cli"]
NSQD = [*GNSQSYNC, "nsqd", "-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"]
PATCHED = (
    "from gevent import monkey; monkey.patch_all();"
    " import sys; from gnsqsync.cli import main; sys.exit(main())"
)

CONSUME = [*GNSQSYNC, "consume", "{topic}", "c", "builtins:repr", "-t", "{tcp}"]

pytestmark = pytest.mark.usefixtures("hangups")
embedded = pytest.mark.parametrize("server_kind", ["embedded"])

Start = Callable[[Sequence[str]], Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Program] = []

    def start(words: Sequence[str]) -> Program:
        running.append(Program(words, tmp_path))
        return running[-1]

    yield start
    for program in running:
        program.kill()


def filled(words: Sequence[str], nsqd: Server) -> list[str]:
    places = {
        "topic": unique("hup"),
        "tcp": address(nsqd),
        "http": url(nsqd).removeprefix("http://"),
    }
    return [word if word == PATCHED else word.format(**places) for word in words]


def http_of(program: Program) -> NsqdHTTP:
    return NsqdHTTP(f"http://{program.wait_for('HTTP: listening on ([0-9.:]+)')[1]}")


def test_the_embedded_nsqd_keeps_its_messages(start: Start, tmp_path: Path) -> None:
    words = [*NSQD, f"-data-path={tmp_path}"]
    program = start(words)
    with http_of(program) as http:
        http.create_topic("t")
        http.create_channel("t", "c")
        http.mpub("t", [b"%d" % number for number in range(50)])
    for _ in range(2):
        program.signal(signal.SIGHUP)
    program.end(0)
    with http_of(start(words)) as http:
        assert http.stats("t").topics[0].channels[0].depth == 50


@embedded
@pytest.mark.parametrize(
    "words",
    [
        NSQD,
        [*GNSQSYNC, "tail", "{topic}", "-t", "{tcp}"],
        [*CONSUME, "--processes", "2"],
        [*CONSUME, "--reload"],
    ],
    ids=str,
)
def test_nohup(start: Start, nsqd: Server, words: list[str]) -> None:
    program = start(["nohup", sys.executable, *filled(words, nsqd)[1:]])
    program.eventually(lambda: program.handles(signal.SIGTERM))
    assert not program.handles(signal.SIGHUP)
    os.killpg(program.process.pid, signal.SIGHUP)
    program.signal(signal.SIGTERM)
    assert "SIGHUP" not in program.end(0)


@embedded
@pytest.mark.parametrize(
    "words",
    [
        [*GNSQSYNC, "nsqlookupd", "-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"],
        [*GNSQSYNC, "nsqadmin", "-http-address=127.0.0.1:0", "-nsqd-http-address=127.0.0.1:1"],
        [*GNSQSYNC, "cluster", "--free-ports"],
        [*GNSQSYNC, "exporter", "--listen", "127.0.0.1:0"],
        [*GNSQSYNC, "stat", "-H", "{http}"],
        [*GNSQSYNC, "tail", "{topic}", "-t", "{tcp}"],
        CONSUME,
        [*CONSUME, "--processes", "2"],
        [*CONSUME, "--reload"],
        ["python", "-c", PATCHED, *CONSUME[3:]],
    ],
    ids=str,
)
def test_a_hangup_ends_each_program(start: Start, nsqd: Server, words: list[str]) -> None:
    program = start(filled(words, nsqd))
    program.eventually(lambda: program.handles(signal.SIGHUP))
    for _ in range(2):
        program.signal(signal.SIGHUP)
    assert "Traceback" not in program.end(0)
