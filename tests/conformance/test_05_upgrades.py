"""Rows 74 to 83: Snappy, DEFLATE, TLS."""

from __future__ import annotations

import random

import pytest

from tests.conformance.rows import waiting
from tests.support.rawclient import (
    ERROR,
    SNAPPY_IDENTIFIER,
    Client,
    Deflate,
    Layer,
    Snappy,
    get,
    request,
    snappy_chunk,
)
from tests.support.servers import Server, Site, unique


@pytest.fixture
def tls_nsqd(site: Site) -> Server:
    return site.nsqd(*site.certificates.flags)


def compressed(site: Site, server: Server, layer: Layer, **fields: object) -> Client:
    client = site.client(server)
    answer = client.identify(**fields)
    assert [answer[name] for name in fields] == list(fields.values())
    client.start_layer(layer)
    client.ok()
    return client


def round_trip(client: Client, size: int) -> None:
    """PUB, SUB, delivery, FIN of random and of repetitive bytes."""
    topic = unique()
    bodies = [random.Random(size).randbytes(size), b"0123456789" * (size // 10)]
    client.subscribe(topic, "c", 1)
    for body in bodies:
        client.publish(topic, body)
        message = client.message()
        assert message.body == body
        client.fin(message)
    client.silent(0.1)


def test_074_snappy(site: Site, tls_nsqd: Server) -> None:
    layer = Snappy()
    client = compressed(site, tls_nsqd, layer, snappy=True)
    assert layer.received.startswith(SNAPPY_IDENTIFIER)
    round_trip(client, 200)
    round_trip(compressed(site, tls_nsqd, Snappy(), snappy=True), 100_000)


def test_075_snappy_identifier_again(site: Site, tls_nsqd: Server) -> None:
    client = compressed(site, tls_nsqd, Snappy(), snappy=True)
    client.alive()
    client.send_raw(SNAPPY_IDENTIFIER)
    client.alive()
    # Chunks that may be skipped, then one that is not compressed.
    client.send_raw(b"\xfe\x03\x00\x00pad" + b"\x80\x00\x00\x00")
    client.send_raw(snappy_chunk(1, b"PUB alive\n\x00\x00\x00\x01x"))
    client.ok()


@pytest.mark.parametrize(
    "data",
    [
        SNAPPY_IDENTIFIER + snappy_chunk(1, b"FOO\n", checksum=b"\x00\x00\x00\x00"),
        SNAPPY_IDENTIFIER + snappy_chunk(0, b"FOO\n", checksum=b"\x00\x00\x00\x00"),
        snappy_chunk(1, b"FOO\n"),
        SNAPPY_IDENTIFIER + b"\x02\x00\x00\x00",
    ],
    ids=["bad-crc", "bad-crc-compressed", "no-identifier", "unknown-chunk"],
)
def test_076_snappy_broken(site: Site, tls_nsqd: Server, data: bytes) -> None:
    client = compressed(site, tls_nsqd, Snappy(), snappy=True)
    client.send_raw(data)
    client.closed()


def test_077_deflate(site: Site, tls_nsqd: Server) -> None:
    layer = Deflate()
    client = compressed(site, tls_nsqd, layer, deflate=True, deflate_level=1)

    def at_a_sync_flush() -> bool:
        client.silent(0.05)  # but it takes in what has come
        return layer.received.endswith(bytes.fromhex("0000ffff"))

    # The OK may come in a segment of its own, and nsqd may flush a second time.
    site.eventually(at_a_sync_flush)
    round_trip(client, 5000)


def secured(site: Site, server: Server, **fields: object) -> Client:
    client = site.client(server)
    assert client.identify(tls_v1=True, **fields)["tls_v1"] is True
    client.start_tls(site.certificates.client_context())
    client.ok()
    return client


def test_078_tls(site: Site, tls_nsqd: Server) -> None:
    client = secured(site, tls_nsqd)
    client.alive()
    round_trip(client, 20_000)


@pytest.mark.parametrize(
    ("layer", "field"), [(Snappy, "snappy"), (Deflate, "deflate")], ids=["snappy", "deflate"]
)
def test_079_tls_and_compression(
    site: Site, tls_nsqd: Server, layer: type[Snappy] | type[Deflate], field: str
) -> None:
    client = secured(site, tls_nsqd, **{field: True})
    client.start_layer(layer())
    client.ok()
    round_trip(client, 20_000)


def test_080_clear_bytes_for_tls(site: Site, tls_nsqd: Server) -> None:
    client = site.client(tls_nsqd)
    assert client.identify(tls_v1=True)["tls_v1"] is True
    client.send(b"NOP\nNOP\n")
    kind, data = client.answer()
    assert kind == ERROR
    assert data.startswith(b"E_IDENTIFY_FAILED IDENTIFY failed ")
    client.closed()


@waiting
def test_081_silence_for_tls(site: Site) -> None:
    client = site.client(site.nsqd(*site.certificates.flags))
    assert client.identify(tls_v1=True)["tls_v1"] is True
    with pytest.raises(TimeoutError):
        client.frame(4.0)
    kind, data = client.answer(6.0)
    assert kind == ERROR
    assert data.startswith(b"E_IDENTIFY_FAILED IDENTIFY failed ")
    client.closed()


@pytest.mark.parametrize("line", ["NOP", "PUB t", "FOO"])
def test_082_tls_required(site: Site, line: str) -> None:
    client = site.client(site.nsqd(*site.certificates.flags, "-tls-required=true"))
    client.command(line)
    name = line.split()[0]
    client.fatal(f"E_INVALID cannot {name} in current state (TLS required)")


def test_082_tls_required_and_given(site: Site) -> None:
    secured(site, site.nsqd(*site.certificates.flags, "-tls-required=true")).alive()


def test_083_tls_required_http(site: Site) -> None:
    server = site.nsqd(*site.certificates.flags, "-tls-required=true")
    for path in ("/ping", "/stats", "/nowhere"):
        reply = get(server.http_address, path)
        assert reply.status == 403
        assert reply.json == {"message": "TLS_REQUIRED", "https_port": server.https_address[1]}
    context = site.certificates.client_context()
    reply = request(server.https_address, "GET", "/ping", tls=context)
    assert (reply.status, reply.body) == (200, b"OK")


def test_083_tcp_https(site: Site) -> None:
    server = site.nsqd(*site.certificates.flags, "-tls-required=tcp-https")
    assert get(server.http_address, "/ping").status == 200
    client = site.client(server)
    client.command("NOP")
    client.fatal("E_INVALID cannot NOP in current state (TLS required)")
