"""The scripted nsqd does what its scripts say, seen by a raw client."""

from __future__ import annotations

import socket
import ssl
import threading

import pytest

from tests.support import scripted
from tests.support.rawclient import RESPONSE, Client, Closed
from tests.support.scripted import ScriptedNsqd, automatic, expect, message, response
from tests.support.servers import Certificates


@pytest.fixture
def connect(request: pytest.FixtureRequest):
    def connect(nsqd: ScriptedNsqd) -> Client:
        client = Client(nsqd.address)
        request.addfinalizer(client.close)
        return client

    return connect


def test_automatic(connect):
    with ScriptedNsqd() as nsqd:
        client = connect(nsqd)
        assert client.identify(client_id="me")["max_rdy_count"] == 2500
        client.publish("t", b"x")
        client.command("NOP")
        client.subscribe("t", "c", 1)
        client.command("CLS")
        client.ok(b"CLOSE_WAIT")
        assert [command.name for command in nsqd.commands] == [
            "IDENTIFY",
            "PUB",
            "NOP",
            "SUB",
            "RDY",
            "CLS",
        ]
        assert nsqd.received("PUB") == [("PUB", ("t",), b"x")]
        assert nsqd.commands[0].json["client_id"] == "me"


def test_steps(connect):
    steps = [
        automatic(until="RDY", max_rdy_count=3),
        message(b"x", id=b"0123456789abcdef", attempts=7),
        expect("FIN", "0123456789abcdef"),
        scripted.heartbeat(),
        scripted.error("E_FIN_FAILED"),
        scripted.drip(scripted.frame(RESPONSE, b"slow")),
        scripted.delay(0.01),
        scripted.half_close(),
    ]
    with ScriptedNsqd(steps) as nsqd:
        client = connect(nsqd)
        assert client.identify()["max_rdy_count"] == 3
        client.subscribe("t", "c", 1)
        found = client.message()
        assert (found.body, found.attempts) == (b"x", 7)
        client.command("NOP")
        client.fin(found)
        assert client.frame() == (RESPONSE, b"_heartbeat_")
        client.error("E_FIN_FAILED")
        client.ok(b"slow")
        client.closed()
        # Only the server's side is closed: commands still arrive.
        client.command("TOUCH 0123456789abcdef")
        nsqd.wait_for("TOUCH")


def test_hooks(connect):
    def refuse(connection: scripted.Connection, command: scripted.Command) -> None:
        connection.error(f"E_PUB_FAILED PUB failed {command.body!r}")

    with ScriptedNsqd([automatic(hooks={"PUB": refuse})]) as nsqd:
        client = connect(nsqd)
        client.command("PUB t", b"x")
        client.error("E_PUB_FAILED PUB failed b'x'")


def test_scripts_by_connection(connect):
    first = [expect("NOP"), scripted.reset()]
    with ScriptedNsqd(first, [automatic()]) as nsqd:
        client = connect(nsqd)
        client.command("NOP")
        with pytest.raises(Closed, match="reset"):
            client.frame()
        for _ in range(2):
            connect(nsqd).publish("t", b"x")
        assert [len(connection.commands) for connection in nsqd.connections] == [1, 1, 1]


def test_gate_and_close(connect):
    gate = threading.Event()
    with ScriptedNsqd([scripted.wait_until(gate), response(), scripted.close()]) as nsqd:
        client = connect(nsqd)
        client.silent(0.05)
        gate.set()
        client.ok()
        client.closed()


def test_silence_ends_with_the_server(connect):
    with ScriptedNsqd([scripted.silence()]) as nsqd:
        client = connect(nsqd)
        client.command("IDENTIFY", b"{}")
        client.silent(0.05)
    client.closed()
    assert nsqd.commands == []


def test_refuse_and_accept_again(connect):
    with ScriptedNsqd() as nsqd:
        client = connect(nsqd)
        client.publish("t", b"x")
        nsqd.refuse_connections()
        with pytest.raises(ConnectionRefusedError):
            connect(nsqd)
        client.publish("t", b"x")
        nsqd.drop_connections()
        client.closed()
        address = nsqd.address
        nsqd.accept_connections()
        assert nsqd.address == address
        connect(nsqd).publish("t", b"x")


def test_tls(connect, certificates: Certificates):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert_file, certificates.key_file)
    with ScriptedNsqd(tls=context) as nsqd:
        client = connect(nsqd)
        assert client.identify(tls_v1=True)["tls_v1"] is True
        client.start_tls(certificates.client_context())
        client.ok()
        client.publish("t", b"x")


def test_failure_is_raised(connect):
    with pytest.raises(AssertionError, match=r"TOUCH.* in place of FIN"):
        with ScriptedNsqd([expect("FIN")]) as nsqd:
            client = connect(nsqd)
            client.command("TOUCH 0123456789abcdef")
            client.closed()
    with pytest.raises(AssertionError, match="Ended in place of FIN"):
        with ScriptedNsqd([expect("FIN")]) as nsqd:
            client = connect(nsqd)
            client.half_close()
            client.closed()


def test_the_port_of_a_refusing_server_stays_reserved():
    with ScriptedNsqd() as nsqd:
        nsqd.refuse_connections()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(nsqd.address)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(nsqd.address)
