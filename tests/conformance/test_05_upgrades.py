"""Rows 74 to 83: Snappy, DEFLATE, TLS."""

from __future__ import annotations

import random
import re
import ssl

import pytest

from tests.conformance.rows import waiting
from tests.support.rawclient import (
    ERROR,
    SNAPPY_IDENTIFIER,
    Client,
    Closed,
    Deflate,
    Layer,
    Snappy,
    channel_stats,
    get,
    request,
    snappy_chunk,
)
from tests.support.servers import Certificates, Server, Site, unique


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
    ("version", "cipher", "expected"),
    [
        ("TLSv1_2", "ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
        ("TLSv1_2", "ECDHE-ECDSA-AES256-GCM-SHA384", "Unknown 49196"),
        ("TLSv1_3", None, "Unknown 486[567]"),
    ],
)
def test_078_tls_in_stats(
    site: Site, tls_nsqd: Server, version: str, cipher: str | None, expected: str
) -> None:
    context = site.certificates.client_context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    if cipher is not None:
        context.set_ciphers(cipher)
    client = site.client(tls_nsqd)
    client.identify(tls_v1=True)
    client.start_tls(context)
    client.ok()
    topic = unique()
    client.subscribe(topic, "c")
    (entry,) = channel_stats(tls_nsqd.http_address, topic, "c")["clients"]
    assert entry["tls"] is entry["tls_negotiated_protocol_is_mutual"] is True
    assert entry["tls_version"] == version.replace("v", "").replace("_", ".")
    assert re.fullmatch(expected, entry["tls_cipher_suite"])
    assert entry["tls_negotiated_protocol"] == ""


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


def test_079_a_record_that_decodes_to_nothing(site: Site, tls_nsqd: Server) -> None:
    # The head of a Snappy chunk that is not compressed has a TLS record of its own.
    client = secured(site, tls_nsqd, snappy=True)
    layer = Snappy()
    client.start_layer(layer)
    ok = b"\0\0\0\6\0\0\0\0OK"
    chunk = snappy_chunk(1, ok)
    assert client.socket.recv(1000) == SNAPPY_IDENTIFIER + chunk[:8]
    assert client.socket.recv(1000) == ok
    for line in ("PUB t", "PUB t"):
        client.command(line, b"x")
        assert [client.socket.recv(1000), client.socket.recv(1000)] == [chunk[:8], ok]
    # One that is compressed is one record.
    topic = unique()
    client.command(f"PUB {topic}", b"x" * 1000)
    assert [client.socket.recv(1000), client.socket.recv(1000)] == [chunk[:8], ok]
    client.command(f"SUB {topic} c")
    assert [client.socket.recv(1000), client.socket.recv(1000)] == [chunk[:8], ok]
    client.command("RDY 1")
    layer.received += SNAPPY_IDENTIFIER
    assert len(layer.decode(client.socket.recv(1000))) == 34 + 1000


def test_079_records_of_deflate(site: Site, tls_nsqd: Server) -> None:
    client = secured(site, tls_nsqd, deflate=True)
    layer = Deflate()
    client.start_layer(layer)
    client.ok()
    mark = b"\0\0\xff\xff"

    def records() -> list[bytes]:
        """What comes until it is silent, each record as it was sent."""
        found = []
        client.socket.settimeout(0.5)
        try:
            while True:
                found.append(client.socket.recv(20_000))
        except TimeoutError:
            return found

    layer.decode(b"".join(records()))
    client.command("PUB t", b"x")
    answer = records()
    assert (len(answer), answer[-1]) == (2, mark)
    assert len(layer.decode(b"".join(answer))) == 10
    topic = unique()
    # nsqd flushes once more, for a consumer that takes nothing yet: an empty block.
    client.command(f"SUB {topic} c")
    answer = records()
    assert (len(answer), answer[1:]) == (4, [mark, b"\0", mark])
    assert len(layer.decode(b"".join(answer))) == 10
    text = bytes(random.Random(1).choices(b"abcdefghij", k=4000))
    site.client(tls_nsqd).publish(topic, text)
    client.command("RDY 1")
    answer = records()
    # What compresses comes in small pieces.
    assert {len(record) for record in answer[:-2]} == {240}
    assert answer[-1] == mark
    assert layer.decode(b"".join(answer)).endswith(text)


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


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["-tls-cert=/missing", "-tls-key={key}"], "TLS config - open /missing: {missing}"),
        (["-tls-cert={cert}", "-tls-key=/missing"], "TLS config - open /missing: {missing}"),
        (["-tls-cert={cert}"], "TLS config - open : {missing}"),
        (["-tls-root-ca-file=/missing"], "client TLS config - open /missing: {missing}"),
        (
            ["-tls-cert={cert}", "-tls-key={key}", "-tls-root-ca-file=/missing"],
            "TLS config - open /missing: {missing}",
        ),
        (
            ["-tls-root-ca-file=/dev/null"],
            "client TLS config - failed to append certificate to pool",
        ),
    ],
    ids=["cert", "key", "no key", "CA", "CA with a certificate", "empty CA"],
)
def test_083_files_that_are_missing(
    server_kind: str, certificates: Certificates, flags: list[str], reason: str
) -> None:
    files = {"cert": str(certificates.cert_file), "key": str(certificates.key_file)}
    server = Server(server_kind, "nsqd", [flag.format(**files) for flag in flags])
    try:
        assert server.run_to_the_end() == 1
        reason = reason.format(missing="no such file or directory")
        assert server.log.endswith(
            f" FATAL: failed to instantiate nsqd - failed to build {reason}\n"
        )
    finally:
        server.discard()


@pytest.mark.parametrize("policy", ["require", "require-verify"])
def test_083_client_certificates(site: Site, policy: str) -> None:
    ca = f"-tls-root-ca-file={site.certificates.ca_file}"
    flags = (*site.certificates.flags, ca, f"-tls-client-auth-policy={policy}")
    server = site.nsqd(*flags)
    client = site.client(server)
    client.identify(tls_v1=True)
    client.start_tls(site.certificates.client_context(with_certificate=True))
    client.ok()
    client.alive()
    client = site.client(server)
    client.identify(tls_v1=True)
    client.start_tls(site.certificates.client_context())
    with pytest.raises((Closed, ssl.SSLError)):
        client.frame()
    client = site.client(server)
    client.command("NOP")
    client.fatal("E_INVALID cannot NOP in current state (TLS required)")


def test_083_no_policy(site: Site) -> None:
    # It requires TLS, but no certificate.
    server = site.nsqd(*site.certificates.flags, "-tls-client-auth-policy=nonsense")
    secured(site, server).alive()
    client = site.client(server)
    client.command("NOP")
    client.fatal("E_INVALID cannot NOP in current state (TLS required)")


def test_083_verified_by_the_system(site: Site) -> None:
    # Without a CA of nsqd's own the machine's count, and none of them has signed this one.
    server = site.nsqd(*site.certificates.flags, "-tls-client-auth-policy=require-verify")
    client = site.client(server)
    client.identify(tls_v1=True)
    client.start_tls(site.certificates.client_context(with_certificate=True))
    with pytest.raises((Closed, ssl.SSLError)):
        client.frame()
