"""Warnings of the embedded nsqd: addresses that lead elsewhere, and messages that a stop loses."""

from __future__ import annotations

import pytest

from gnsqsync.embedded.reach import is_certain
from tests.support.interpreter import run_script

START = """
import io
import sys
import gevent
from gevent import socket
from gevent.server import StreamServer
from gnsqsync.daemon.golog import Log
from gnsqsync.embedded.options import NsqdOptions
from gnsqsync.embedded.server import NsqdServer

def serve(**given):
    out = io.StringIO()
    addresses = dict(tcp_address="127.0.0.1:0", http_address="127.0.0.1:0")
    # Nothing listens at the port of this nsqlookupd: what nsqd registers is looked at anyhow.
    given = dict(lookupd_tcp_address=("127.0.0.1:1",)) | addresses | given
    server = NsqdServer(NsqdOptions(**given), Log("", "warn", out))
    server.start()
    return server, out

def lines(out):
    return [line.partition(": ")[2] for line in out.getvalue().splitlines() if "WARNING" in line]
"""
WARNING = (
    "nsqlookupd hands out addresses at which this nsqd cannot be reached: {};"
    " correct --broadcast-address and the ports, or the addresses it listens on"
)


def test_an_address_that_leads_here_is_no_warning() -> None:
    assert (
        run_script(
            START,
            """
        # 0.0.0.0 is no address of its own, so nsqd calls itself.
        server, out = serve(
            tcp_address="0.0.0.0:0", http_address="0.0.0.0:0", broadcast_address="127.0.0.1"
        )
        server._test_call.join()
        by_default, more = serve()
        print(lines(out), by_default._test_call, lines(more))
        server.stop(), by_default.stop()
        """,
        )
        == "[] None []"
    )


def test_an_address_where_nobody_answers_is_one_warning() -> None:
    out = run_script(
        START,
        """
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
        server, out = serve(broadcast_tcp_port=port, broadcast_http_port=port)
        server._test_call.join()
        server.set_lookupd_addresses(())
        server.set_lookupd_addresses(("127.0.0.1:1",))
        server.stop()
        print(port, *lines(out), sep="\\n")
        """,
    )
    port, warning = out.splitlines()
    refused = f"127.0.0.1:{port} (Connection refused)"
    assert warning == WARNING.format(f"{refused}, {refused}")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("other.sendall(b'x' * 8)", "another server answers there"),
        ("None", "no nsqd answers there"),
    ],
)
def test_an_address_of_another_server_is_one_warning(answer: str, reason: str) -> None:
    out = run_script(
        START,
        f"""
        def answers(other, address):
            other.recv(4096)
            {answer}
        stranger = StreamServer(("127.0.0.1", 0), answers)
        stranger.start()
        server, out = serve(broadcast_tcp_port=stranger.server_port)
        server._test_call.join()
        server.stop()
        stranger.stop()
        print(stranger.server_port, *lines(out), sep="\\n")
        """,
    )
    port, warning = out.splitlines()
    assert warning == WARNING.format(f"127.0.0.1:{port} ({reason})")


@pytest.mark.parametrize(
    ("host", "port", "listens_on", "certain"),
    [
        ("127.0.0.1", 4150, "127.0.0.1:4150", True),
        ("localhost", 4150, "127.0.0.1:4150", True),
        ("127.0.0.1", 4151, "127.0.0.1:4150", False),
        ("10.0.0.5", 4150, "127.0.0.1:4150", False),
        ("127.0.0.1", 4150, "0.0.0.0:4150", False),
        ("shop-1", 0, "/run/nsqd.sock", False),
    ],
)
def test_only_an_address_of_this_machine_needs_no_call(
    host: str, port: int, listens_on: str, certain: bool
) -> None:
    assert is_certain(host, port, listens_on) is certain


@pytest.mark.parametrize("kept", [False, True])
def test_a_stop_says_how_many_messages_go_with_it(kept: bool) -> None:
    out = run_script(
        START,
        f"""
        import tempfile
        with tempfile.TemporaryDirectory() as folder:
            server, out = serve(lookupd_tcp_address=(), data_path=folder * {kept})
            server.broker.topic("orders").publish([b"1", b"2"])
            server.broker.topic("mails").channel("send").pause(True)
            server.broker.topic("mails").publish([b"3"])
            server.broker.schedule.settle()
            server.stop()
            server.stop()
        print(lines(out))
        """,
    )
    told = "3 messages of 2 queues are lost, as there is no --data-path: orders (2), mails/send (1)"
    assert out == str([] if kept else [told])
