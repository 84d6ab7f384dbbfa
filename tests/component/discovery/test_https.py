"""A Reader's discovery at an nsqlookupd behind https."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest

from gnsqsync import Observer
from tests.component.conftest import Client
from tests.support.scripted import ScriptedNsqd
from tests.support.servers import Certificates
from tests.support.serving import Serving, SocketServer
from tests.support.worlds import World

pytestmark = pytest.mark.reality("TLS")


@pytest.fixture
def context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert_file, certificates.key_file)
    return context


@pytest.fixture
def lookupd(context: ssl.SSLContext) -> Iterator[SocketServer]:
    server = SocketServer()
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    with Serving(server):
        yield server


def test_https_is_verified_with_the_files_of_the_connections(
    client: Client,
    world: World,
    lookupd: SocketServer,
    context: ssl.SSLContext,
    certificates: Certificates,
) -> None:
    with ScriptedNsqd(tls=context) as nsqd:
        host, port = nsqd.address
        producer = {"broadcast_address": host, "tcp_port": port, "http_port": 1}
        lookupd.answer({"channels": [], "producers": [producer]})
        client.consume(
            print,
            lookupd_http_addresses=f"https://{lookupd.address}/nsq?key=k",
            tls_ca_file=str(certificates.ca_file),
        )
        world.eventually(lambda: nsqd.received("SUB"))
        (request,) = lookupd.requests
        assert request["path"] == "/nsq/lookup"
        assert request["params"] == {"key": "k", "topic": "t"}


def test_an_https_nsqlookupd_that_does_not_verify_is_not_believed(
    client: Client, world: World, lookupd: SocketServer
) -> None:
    told: list[str] = []

    class Watching(Observer):
        def lookup_failed(self, url: str, reason: Exception) -> None:
            told.append(str(reason))

    client.consume(print, lookupd_http_addresses=f"https://{lookupd.address}", observer=Watching())
    world.eventually(lambda: told)
    assert "certificate" in told[0].lower()
    assert not lookupd.requests
