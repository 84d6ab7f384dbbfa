"""NSQ's own tools on the embedded servers."""

from __future__ import annotations

import http.server
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnsqsync import NsqdHTTP
from gnsqsync.embedded import Nsqd, Nsqlookupd
from tests.support import realnsq
from tests.support.needs import missing
from tests.support.programs import Program
from tests.support.serving import Serving
from tests.support.waiting import eventually

Run = Callable[..., Program]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Starts one of the tools."""
    started: list[Program] = []

    def start(tool: str, *flags: str, stdin: bytes = b"") -> Program:
        try:
            path = realnsq.program(tool)
        except realnsq.Unavailable as error:
            missing(error)
        started.append(Program([str(path), *flags], tmp_path, stdin=stdin))
        return started[-1]

    yield start
    for program in started:
        program.kill()


@pytest.fixture
def lookupd() -> Iterator[Nsqlookupd]:
    with Nsqlookupd() as server:
        yield server


@pytest.fixture
def nsqd(lookupd: Nsqlookupd) -> Iterator[Nsqd]:
    with Nsqd(lookupd_tcp_addresses=lookupd.tcp_address, broadcast_address="127.0.0.1") as server:
        yield server


@pytest.fixture
def http_(nsqd: Nsqd) -> Iterator[NsqdHTTP]:
    with NsqdHTTP(nsqd.http_address) as client:
        client.create_topic("orders")
        client.create_channel("orders", "archive")
        yield client


def clients(http_: NsqdHTTP, count: int = 1) -> None:
    """Waits until so many consume orders."""
    eventually(
        lambda: sum(c.client_count for c in http_.stats("orders").topics[0].channels) == count
    )


def test_nsq_tail(run: Run, lookupd: Nsqlookupd, http_: NsqdHTTP) -> None:
    tail = run("nsq_tail", "-topic=orders", f"-lookupd-http-address={lookupd.http_address}", "-n=2")
    clients(http_)
    http_.mpub("orders", [b"one", b"two"])
    assert {"one", "two"} <= set(tail.end().splitlines())


def test_to_nsq(run: Run, nsqd: Nsqd, http_: NsqdHTTP) -> None:
    run(
        "to_nsq", "-topic=orders", f"-nsqd-tcp-address={nsqd.tcp_address}", stdin=b"a\nb\nc\n"
    ).end()
    assert http_.stats("orders").topics[0].message_count == 3


def test_nsq_stat(run: Run, nsqd: Nsqd, http_: NsqdHTTP) -> None:
    http_.mpub("orders", [b"x"] * 7)
    stat = run(
        "nsq_stat",
        "-topic=orders",
        "-channel=archive",
        f"-nsqd-http-address={nsqd.http_address}",
        "-interval=100ms",
        "-count=1",
    )
    assert "7" in stat.end().splitlines()[-1].split()


def test_nsq_to_file(run: Run, lookupd: Nsqlookupd, http_: NsqdHTTP, tmp_path: Path) -> None:
    tool = run(
        "nsq_to_file",
        "-topic=orders",
        "-channel=file",
        f"-output-dir={tmp_path / 'out'}",
        f"-lookupd-http-address={lookupd.http_address}",
    )
    clients(http_)
    http_.mpub("orders", [b"one", b"two"])
    eventually(lambda: http_.stats("orders", "file").topics[0].channels[0].depth == 0)
    tool.signal(signal.SIGTERM)
    tool.end()
    (path,) = (tmp_path / "out").iterdir()
    assert path.read_bytes() == b"one\ntwo\n"


def test_nsq_to_nsq(run: Run, nsqd: Nsqd, http_: NsqdHTTP) -> None:
    with Nsqd() as other, NsqdHTTP(other.http_address) as there:
        run(
            "nsq_to_nsq",
            "-topic=orders",
            f"-nsqd-tcp-address={nsqd.tcp_address}",
            f"-destination-nsqd-tcp-address={other.tcp_address}",
        )
        clients(http_)
        http_.mpub("orders", [b"x"] * 20)

        def arrived() -> int:
            return sum(topic.message_count for topic in there.stats("orders").topics)

        eventually(lambda: arrived() == 20)


def test_nsq_to_http(run: Run, nsqd: Nsqd, http_: NsqdHTTP) -> None:
    posted: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with Serving(server):
        run(
            "nsq_to_http",
            "-topic=orders",
            f"-nsqd-tcp-address={nsqd.tcp_address}",
            f"-post=http://127.0.0.1:{server.server_port}/",
        )
        clients(http_)
        http_.mpub("orders", [b"one", b"two"])
        eventually(lambda: sorted(posted) == [b"one", b"two"])
