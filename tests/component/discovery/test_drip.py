"""An nsqlookupd that never comes to an end: every request does, and none outlives a stop."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from gnsqsync import LookupdHTTP, Reader, Writer
from gnsqsync.errors import ClosedError, ConnectionLost
from tests.component.conftest import Client
from tests.support.waiting import eventually
from tests.support.worlds import World

pytestmark = pytest.mark.reality("sockets that drip, and a kernel's buffers")

PAUSE = 0.05
# By then everything has ended. A drip that is waited for takes two seconds and more.
SOON = 1.0
# Seconds of a deadline of one second at most, on a busy machine.
ENDED = 10.0

OK = b"HTTP/1.1 200 OK\r\n"
DRIPS = {
    "status line": (b"HTTP/1.1 200 ", b"O"),
    "headers": (OK + b"X: ", b"y"),
    "body": (OK + b"Content-Length: 100000\r\n\r\n", b" "),
    "endless body": (OK + b"\r\n", b" "),
    "chunks": (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "a chunk": (OK + b"Transfer-Encoding: chunked\r\n\r\nFFFF\r\n", b" "),
    "silence": (b"", b""),
}


class Hostile:
    """A server that sends a beginning to each who asks, and then drips."""

    def __init__(self, begin: bytes, drip: bytes) -> None:
        self._begin = begin
        self._drip = drip
        self._over = threading.Event()
        self.asked = 0
        # Connections whose end has not been seen.
        self.open = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.02)
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._threads = [threading.Thread(target=self._accept, name="hostile accept")]
        self._threads[0].start()

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with self._listener:
            while not self._over.is_set():
                try:
                    connection, _ = self._listener.accept()
                except TimeoutError:
                    continue
                with self._lock:
                    self.open += 1
                thread = threading.Thread(target=self._serve, args=(connection,), name="hostile")
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(PAUSE)
            while not self._over.is_set():
                try:
                    data = connection.recv(65536)
                except TimeoutError:
                    if self.asked:
                        connection.sendall(self._drip)
                    continue
                if not data:
                    break
                self.asked += 1
                connection.sendall(self._begin)
        with self._lock:
            self.open -= 1


@pytest.fixture(params=DRIPS)
def hostile(request: pytest.FixtureRequest) -> Iterator[Hostile]:
    server = Hostile(*DRIPS[request.param])
    yield server
    server.close()


@pytest.fixture
def silent() -> Iterator[Hostile]:
    server = Hostile(b"", b"")
    yield server
    server.close()


def nothing_is_left(world: World, discovery: Any, hostile: Hostile) -> None:
    assert not any(task.alive for task in discovery.tasks)
    world.eventually(lambda: not hostile.open, 1.0)


@pytest.mark.parametrize("timeout", [0, 1, 30])
def test_a_reader_stops_at_once(
    client: Client, world: World, hostile: Hostile, timeout: float
) -> None:
    reader = client.consume(print, lookupd_http_addresses=hostile.address)
    world.eventually(lambda: hostile.asked)
    world.sleep(2 * PAUSE)
    run: Any = reader._run
    stopped(reader, timeout)
    nothing_is_left(world, run._discovery, hostile)


def stopped(reader: Reader, timeout: float) -> None:
    began = time.monotonic()
    reader.stop(timeout)
    result = reader.join(20)
    assert time.monotonic() - began < SOON
    assert result is not None
    assert result.clean


def test_a_writer_closes_at_once(client: Client, world: World, hostile: Hostile) -> None:
    writer = client.keep(
        Writer(lookupd_http_addresses=hostile.address, runtime=world.runtime, publish_timeout=0.1)
    )
    with pytest.raises(Exception, match="no nsqd"):
        writer.publish("t", "x")
    discovery: Any = writer._publisher().pool._discovery
    world.eventually(lambda: hostile.asked)
    began = time.monotonic()
    writer.close()
    assert time.monotonic() - began < SOON
    nothing_is_left(world, discovery, hostile)


def test_a_session_of_the_user_is_cut_too(client: Client, world: World, hostile: Hostile) -> None:
    """One with requests' own adapters."""
    reader = client.consume(
        print, lookupd_http_addresses=hostile.address, lookupd_session=requests.Session
    )
    world.eventually(lambda: hostile.asked)
    run: Any = reader._run
    stopped(reader, 30)
    nothing_is_left(world, run._discovery, hostile)


def test_an_nsqlookupd_that_is_removed_is_asked_no_longer(
    client: Client, world: World, silent: Hostile
) -> None:
    reader = client.consume(print, lookupd_http_addresses=silent.address)
    world.eventually(lambda: silent.asked)
    reader.remove_lookupd(silent.address)
    world.eventually(lambda: not silent.open, SOON)


def test_a_tls_handshake_that_never_ends_is_cut(
    client: Client, world: World, silent: Hostile
) -> None:
    reader = client.consume(print, lookupd_http_addresses=f"https://{silent.address}")
    world.eventually(lambda: silent.asked)
    run: Any = reader._run
    stopped(reader, 30)
    nothing_is_left(world, run._discovery, silent)


def test_a_dial_that_nobody_answers_is_cut(client: Client, world: World) -> None:
    with socket.socket() as full, contextlib.ExitStack() as waiting:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        host, port = full.getsockname()
        for _ in range(3):
            sock = waiting.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex((host, port))
        reader = client.consume(print, lookupd_http_addresses=f"{host}:{port}")
        world.sleep(0.2)
        run: Any = reader._run
        began = time.monotonic()
        reader.stop(30)
        assert reader.join(20)
        assert time.monotonic() - began < SOON
        assert not any(task.alive for task in run._discovery.tasks)


def test_answer_that_is_cut_is_told(hostile: Hostile) -> None:
    """Whoever called is told that the client was closed, and not by whom."""
    ended: list[BaseException] = []
    lookupd = LookupdHTTP(hostile.address)

    def ask() -> None:
        try:
            lookupd.topics()
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    eventually(lambda: hostile.asked)
    lookupd.cut()
    thread.join(SOON)
    assert not thread.is_alive()
    assert isinstance(ended[0], ClosedError)
    with pytest.raises(ClosedError):
        lookupd.topics()


def test_every_drip_ends_at_one_deadline(hostile: Hostile) -> None:
    """Ten time-outs, however often a byte comes. Without a deadline it would never end."""
    with LookupdHTTP(hostile.address, timeout=0.08) as lookupd:
        began = time.monotonic()
        with pytest.raises(ConnectionLost, match="no answer within"):
            lookupd.topics()
        assert time.monotonic() - began < ENDED


def test_redirects_that_drip_share_the_deadline() -> None:
    """Each takes most of the time that one answer may take."""
    begin = b"HTTP/1.1 302 Found\r\nLocation: /topics\r\nX: "

    class Slow(Hostile):
        def _serve(self, connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                connection.settimeout(5)
                while connection.recv(65536):
                    connection.sendall(begin)
                    for _ in range(12):
                        self._over.wait(PAUSE)
                        connection.sendall(b"y")
                    connection.sendall(b"\r\nContent-Length: 0\r\n\r\n")

    server = Slow(b"", b"")
    try:
        with LookupdHTTP(server.address, timeout=0.1) as lookupd:
            began = time.monotonic()
            with pytest.raises(ConnectionLost, match="no answer within"):
                lookupd.topics()
            # Alone each takes 0.6 s, and thirty are followed.
            assert time.monotonic() - began < ENDED
    finally:
        server.close()
