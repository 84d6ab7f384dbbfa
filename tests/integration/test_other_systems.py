"""Without the calls that only Linux has, as on macOS: taken away here, one by one and together."""

from __future__ import annotations

import queue
import socket

import pytest

from gnsqsync import Reader, Writer
from gnsqsync.embedded import Nsqd
from gnsqsync.errors import NotSent, OutcomeUnknown
from gnsqsync.runtime import dial, native_sockets

MISSING = ("shutdown that wakes connect", "TCP_INFO", "MSG_NOSIGNAL")


@pytest.fixture(params=[*MISSING, "all"], autouse=True)
def missing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = MISSING if request.param == "all" else (request.param,)
    if "shutdown that wakes connect" in gone:
        monkeypatch.setattr(dial, "_SHUTDOWN_WAKES", False)
    if "TCP_INFO" in gone:
        monkeypatch.setattr(dial, "_TELLS_STATE", False)
        monkeypatch.delattr(socket, "TCP_INFO", raising=False)
    if "MSG_NOSIGNAL" in gone:
        monkeypatch.setattr(native_sockets, "SEND_FLAGS", socket.MSG_DONTWAIT)


def test_publish_consume_and_a_restart(request: pytest.FixtureRequest) -> None:
    got: queue.Queue[bytes] = queue.Queue()
    with Nsqd() as nsqd, Writer([nsqd.tcp_address], publish_timeout=10) as writer:
        reader = Reader(
            "t",
            "ch",
            lambda message: got.put(message.body),
            nsqd_tcp_addresses=[nsqd.tcp_address],
        )
        request.addfinalizer(reader.stop)
        reader.start(block=False)
        confirmed = {b"%d" % number for number in range(100)}
        for body in sorted(confirmed):
            writer.publish("t", body)
        assert {got.get(timeout=20) for _ in confirmed} == confirmed
        nsqd.restart()
        try:
            writer.publish("t", b"after")
        except OutcomeUnknown:
            # Nobody could tell that the connection had ended; the next one is a new connection.
            writer.publish("t", b"after")
        # nsqd may have gone before a FIN; such a message is delivered again.
        while (body := got.get(timeout=20)) in confirmed:
            pass
        assert body == b"after"
        reader.stop()
        result = reader.join(timeout=20)
        assert result is not None and result.unanswered == 0


def test_a_close_while_it_dials_a_host_that_does_not_answer() -> None:
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    waiting = [socket.socket() for _ in range(4)]
    for each in waiting:
        each.setblocking(False)
        each.connect_ex(full.getsockname())
    host, port = full.getsockname()
    writer = Writer([f"{host}:{port}"], publish_timeout=0.3, connect_timeout=60)
    with pytest.raises(NotSent):
        writer.publish("t", b"1")
    writer.close()
    for each in (full, *waiting):
        each.close()
