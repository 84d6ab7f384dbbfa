"""nsqd's registration with nsqlookupd, against a recording peer and the embedded nsqlookupd."""

from __future__ import annotations

import io
import json
import struct
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
from gevent import socket
from gevent.queue import Queue
from gevent.server import StreamServer

from gnsqsync.daemon.golog import Log
from gnsqsync.embedded import Nsqlookupd, lookup_peer
from gnsqsync.embedded.lookup_peer import LookupPeers
from gnsqsync.embedded.lookupd import identity
from tests.support.waiting import eventually

IDENTITY = identity("127.0.0.1", "host", 4150, 4151)
TIMEOUT = 20.0


class Recorder:
    """A peer that notes each connection's commands and answers with what it is told to."""

    def __init__(self) -> None:
        self.commands: Any = Queue()
        self.info: bytes = json.dumps(identity("127.0.0.1", "h", 1, 1)).encode()
        self.answer: bytes | None = b"OK"
        self._server = StreamServer(("127.0.0.1", 0), self._serve)
        self._server.start()
        self.port = self._server.server_port
        self.address = f"127.0.0.1:{self.port}"

    def _serve(self, sock: Any, address: Any) -> None:
        with sock, sock.makefile("rb") as stream:
            assert stream.read(4) == b"  V1"
            for line in stream:
                answer = self.answer
                if line == b"IDENTIFY\n":
                    (size,) = struct.unpack(">i", stream.read(4))
                    assert json.loads(stream.read(size)) == IDENTITY
                    answer = self.info
                self.commands.put(line.decode().rstrip("\n"))
                if answer is None:
                    return
                sock.sendall(struct.pack(">i", len(answer)) + answer)

    def next(self, count: int) -> list[str]:
        """The next commands; gevent.queue.Empty when they do not come."""
        return [self.commands.get(timeout=TIMEOUT) for _ in range(count)]

    def stop(self) -> None:
        self._server.stop(timeout=0)

    def resume(self) -> None:
        """Listens on the same port again."""
        self._server = StreamServer(("127.0.0.1", self.port), self._serve)
        self._server.start()


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    recorder.stop()


class Nsqd:
    """The names that an nsqd would have, and its LookupPeers."""

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {}
        self.log = io.StringIO()
        self.made: list[LookupPeers] = []

    def peers(self, *addresses: str, wait: float = TIMEOUT, **options: Any) -> LookupPeers:
        peers = LookupPeers(
            addresses,
            identity=IDENTITY,
            names=lambda: self.names.items(),
            log=Log("[nsqd] ", "debug", self.log),
            **options,
        )
        self.made.append(peers)
        peers.start(wait=wait)
        return peers


@pytest.fixture
def nsqd() -> Iterator[Nsqd]:
    nsqd = Nsqd()
    yield nsqd
    for peers in nsqd.made:
        peers.stop()


def wait_until(condition: Callable[[], bool]) -> None:
    """For what the greenlets of this thread do."""
    eventually(condition, TIMEOUT, sleep=gevent.sleep)


def test_names_at_connect_and_changes(recorder: Recorder, nsqd: Nsqd) -> None:
    nsqd.names = {"t": ["c", "e#ephemeral"], "u": []}
    peers = nsqd.peers(recorder.address)
    assert recorder.next(4) == [
        "IDENTIFY",
        "REGISTER t c",
        "REGISTER t e#ephemeral",
        "REGISTER u",
    ]
    peers.names_changed("topic created", "v", None)
    peers.names_changed("channel created", "v", "c")
    peers.names_changed("channel deleted", "v", "c")
    peers.names_changed("topic deleted", "v", None)
    assert recorder.next(4) == ["REGISTER v", "REGISTER v c", "UNREGISTER v c", "UNREGISTER v"]


def test_ping(recorder: Recorder, nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_peer, "PING_INTERVAL", 0.02)
    nsqd.peers(recorder.address)
    assert recorder.next(4) == ["IDENTIFY", "PING", "PING", "PING"]


def test_the_next_command_reconnects_with_all_names(recorder: Recorder, nsqd: Nsqd) -> None:
    recorder.stop()
    peers = nsqd.peers(recorder.address)
    assert "connection refused" in nsqd.log.getvalue().lower()
    nsqd.names = {"t": ["c"]}
    peers.names_changed("channel created", "t", "c")
    wait_until(lambda: "REGISTER t c - " in nsqd.log.getvalue())
    recorder.resume()
    peers.names_changed("topic created", "u", None)
    assert recorder.next(3) == ["IDENTIFY", "REGISTER t c", "REGISTER u"]


def test_a_command_without_answer_ends_the_connection(
    recorder: Recorder, nsqd: Nsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_peer, "PING_INTERVAL", 0.05)
    recorder.answer = None
    nsqd.peers(recorder.address)
    assert recorder.next(4) == ["IDENTIFY", "PING", "IDENTIFY", "PING"]
    assert "PING - EOF" in nsqd.log.getvalue()


def test_a_wrong_answer_to_identify_ends_the_connection(recorder: Recorder, nsqd: Nsqd) -> None:
    recorder.info = b"E_INVALID"
    peers = nsqd.peers(recorder.address)
    assert "parsing response - E_INVALID" in nsqd.log.getvalue()
    assert peers.channels("t") == []
    recorder.info = json.dumps(identity("", "h", 1, 1)).encode()
    peers.names_changed("topic created", "t", None)
    assert recorder.next(3) == ["IDENTIFY", "IDENTIFY", "REGISTER t"]
    assert "no broadcast address" in nsqd.log.getvalue()


def test_an_answer_over_the_limit_ends_the_connection(recorder: Recorder, nsqd: Nsqd) -> None:
    nsqd.peers(recorder.address, max_body_size=10)
    assert "is greater than limit (10)" in nsqd.log.getvalue()


def test_an_nsqlookupd_that_is_silent_does_not_hold_up_the_others(
    recorder: Recorder, nsqd: Nsqd
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        peers = nsqd.peers(address, "not an address", recorder.address, wait=0)
        peers.names_changed("topic created", "t", None)
        assert recorder.next(2) == ["IDENTIFY", "REGISTER t"]
        wait_until(lambda: f"{address}): connect - timed out" in nsqd.log.getvalue())
        assert "not an address: missing host or port" in nsqd.log.getvalue()


def test_a_port_that_cannot_be(recorder: Recorder, nsqd: Nsqd) -> None:
    port = int(recorder.address.rpartition(":")[2]) + 65536
    nsqd.peers(f"127.0.0.1:{port}")
    assert f"dial tcp: address {port}: invalid port" in nsqd.log.getvalue()


def test_addresses_change_live(recorder: Recorder, nsqd: Nsqd) -> None:
    peers = nsqd.peers()
    peers.names_changed("topic created", "nobody hears", None)
    peers.set_addresses([recorder.address])
    assert recorder.next(1) == ["IDENTIFY"]
    peers.set_addresses([recorder.address])
    peers.names_changed("topic created", "t", None)
    assert recorder.next(1) == ["REGISTER t"]
    peers.set_addresses([])
    peers.names_changed("topic created", "nobody hears", None)
    peers.set_addresses([recorder.address])
    peers.names_changed("topic created", "u", None)
    assert recorder.next(2) == ["IDENTIFY", "REGISTER u"]


def post(url: str) -> None:
    urllib.request.urlopen(urllib.request.Request(f"http://{url}", data=b""), timeout=TIMEOUT)


def test_channels_from_nsqlookupds(recorder: Recorder, nsqd: Nsqd) -> None:
    with Nsqlookupd() as one, Nsqlookupd() as two:
        for lookupd, channels in ((one, "ab"), (two, "bc")):
            for channel in channels:
                post(f"{lookupd.http_address}/channel/create?topic=t%23ephemeral&channel={channel}")
        # The recorder names an HTTP port where nobody listens.
        peers = nsqd.peers(one.tcp_address, recorder.address, two.tcp_address)
        assert peers.channels("t#ephemeral") == ["a", "b", "c"]
        assert peers.channels("unknown") == []
        assert f"LOOKUPD({recorder.address}): failed to query" in nsqd.log.getvalue()
