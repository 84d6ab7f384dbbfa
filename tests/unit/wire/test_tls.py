"""TlsLayer against itself in memory: certificates, surplus bytes, the end, two threads."""

from __future__ import annotations

import os
import ssl
import threading
from dataclasses import dataclass

import pytest
import trustme

from gnsqsync.errors import (
    ConfigError,
    ConnectionLost,
    NegotiationFailed,
    NSQError,
    ProtocolError,
)
from gnsqsync.wire import frames
from gnsqsync.wire.tls import TlsLayer


@dataclass
class Authority:
    ca: trustme.CA
    server: trustme.LeafCert
    client: trustme.LeafCert


@pytest.fixture(scope="module")
def authority() -> Authority:
    ca = trustme.CA()
    return Authority(
        ca,
        ca.issue_cert("127.0.0.1", "nsqd.test"),
        ca.issue_cert("client@nsq.test", common_name="a consumer"),
    )


def server_context(authority: Authority, demand: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.server.configure_cert(context)
    if demand:
        authority.ca.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.ca.configure_trust(context)
    return context


def shake(client: TlsLayer, server: TlsLayer) -> None:
    """Carry bytes to and fro until both sides are done."""
    to_server, to_client = client.handshake(b""), b""
    while not (client.done and server.done):
        assert to_server or to_client, "the handshake is stuck"
        if to_server:
            to_client += server.handshake(to_server)
            to_server = b""
        if to_client:
            to_server = client.handshake(to_client)
            to_client = b""
    if to_client:
        assert client.decode(to_client) == b""


versions = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])


def pair(
    authority: Authority, version: ssl.TLSVersion | None = None, **keywords: object
) -> tuple[TlsLayer, TlsLayer]:
    context = client_context(authority)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    client = TlsLayer(context, server_hostname="127.0.0.1", **keywords)  # type: ignore[arg-type]
    return client, TlsLayer(server_context(authority), server_side=True)


@versions
def test_both_ways(authority: Authority, version: ssl.TLSVersion) -> None:
    client, server = pair(authority, version)
    assert not client.done and client.version is None and client.cipher is None
    shake(client, server)
    assert client.version == server.version == version.name.replace("_", ".")
    assert client.cipher
    assert server.decode(client.encode(b"NOP\n")) == b"NOP\n"
    assert client.decode(server.encode(b"OK")) == b"OK"
    assert client.decode(b"") == b""
    assert not client.eof
    # The handshake may leave tickets to send; they go out with the next encode, in order.
    assert server.encode(b"") == b""


@versions
def test_bytes_one_by_one_and_5_mib(authority: Authority, version: ssl.TLSVersion) -> None:
    client, server = pair(authority, version)
    shake(client, server)
    encoded = server.encode(b"hello") + server.encode(b" world")
    assert b"".join(client.decode(bytes([byte])) for byte in encoded) == b"hello world"
    body = os.urandom(5 * 1024 * 1024)
    encoded = client.encode(body)
    steps = range(0, len(encoded), 65536)
    assert b"".join(server.decode(encoded[at : at + 65536]) for at in steps) == body


def test_handshake_one_byte_at_a_time(authority: Authority) -> None:
    client, server = pair(authority)
    to_server = client.handshake(b"")
    while not (client.done and server.done):
        to_client = b"".join(server.handshake(bytes([byte])) for byte in to_server)
        to_server = b"".join(client.handshake(bytes([byte])) for byte in to_client)
    assert client.decode(server.encode(b"OK")) == b"OK"


@versions
def test_surplus_comes_out_of_the_first_decode(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    # nsqd's OK often arrives together with the last bytes of its handshake.
    client, server = pair(authority, version)
    to_client = server.handshake(client.handshake(b""))
    while not server.done:
        to_server = client.handshake(to_client)
        to_client = server.handshake(to_server)
    to_client += server.encode(frames.encode_response(b"OK"))
    if client.done:
        surplus = client.decode(to_client)
    else:
        client.handshake(to_client)
        assert client.done
        surplus = client.decode(b"")
    assert surplus == frames.encode_response(b"OK")


def test_unknown_authority(authority: Authority) -> None:
    context = ssl.create_default_context()
    trustme.CA().configure_trust(context)
    client = TlsLayer(context, server_hostname="127.0.0.1", peer="127.0.0.1:4150")
    server = TlsLayer(server_context(authority), server_side=True)
    hello = server.handshake(client.handshake(b""))
    with pytest.raises(
        NegotiationFailed, match=r"certificate of 127\.0\.0\.1:4150 does not verify"
    ):
        client.handshake(hello)
    # The server learns of it by the alert that close() gives.
    with pytest.raises(NegotiationFailed, match="unknown ca"):
        server.handshake(client.close())


def test_wrong_name(authority: Authority) -> None:
    client = TlsLayer(client_context(authority), server_hostname="other.test")
    server = TlsLayer(server_context(authority), server_side=True)
    hello = server.handshake(client.handshake(b""))
    with pytest.raises(NegotiationFailed, match=r"other\.test.* not valid for 'other\.test'"):
        client.handshake(hello)


def test_a_context_that_checks_names_needs_one(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="tls_server_hostname"):
        TlsLayer(client_context(authority), peer="unix:///run/nsqd.sock")
    with pytest.raises(ConfigError, match="tls_server_hostname"):
        TlsLayer(client_context(authority), server_hostname="")
    with pytest.raises(ConfigError, match="tls_server_hostname"):
        TlsLayer(client_context(authority), server_hostname=".nsqd.test")
    unverified = client_context(authority)
    unverified.check_hostname = False
    shake(TlsLayer(unverified), TlsLayer(server_context(authority), server_side=True))


@versions
def test_client_certificate(authority: Authority, version: ssl.TLSVersion) -> None:
    context = client_context(authority)
    context.minimum_version = context.maximum_version = version
    authority.client.configure_cert(context)
    client = TlsLayer(context, server_hostname="nsqd.test")
    server = TlsLayer(server_context(authority, demand=True), server_side=True)
    assert server.peer_common_name == ""
    shake(client, server)
    assert server.peer_common_name == "a consumer"
    assert client.peer_common_name == ""  # trustme gives servers no common name


@versions
def test_client_certificate_is_missing(authority: Authority, version: ssl.TLSVersion) -> None:
    context = client_context(authority)
    context.minimum_version = context.maximum_version = version
    client = TlsLayer(context, server_hostname="nsqd.test", peer="nsqd.test:4150")
    server = TlsLayer(server_context(authority, demand=True), server_side=True)
    to_server = client.handshake(server.handshake(client.handshake(b"")))
    with pytest.raises(NegotiationFailed, match="did not return a certificate"):
        server.handshake(to_server)
    alert = server.close()
    # With TLS 1.3 the client believes that it is done when the alert arrives.
    assert client.done == (version is ssl.TLSVersion.TLSv1_3)
    with pytest.raises(NegotiationFailed, match=r"nsqd\.test:4150"):
        if client.done:
            client.decode(alert)
        else:
            client.handshake(alert)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("tls: no cipher suite supported", NegotiationFailed),
        # Late is not refused: it may be tried again.
        ("read tcp 127.0.0.1:4150->127.0.0.1:50000: i/o timeout", ConnectionLost),
    ],
)
def test_clear_answer_to_the_handshake(
    authority: Authority, reason: str, expected: type[NSQError]
) -> None:
    client, _ = pair(authority)
    client.handshake(b"")
    answer = frames.encode_error(f"E_IDENTIFY_FAILED IDENTIFY failed {reason}".encode())
    with pytest.raises(expected, match=rf"nsqd says: E_IDENTIFY_FAILED .* {reason}"):
        client.handshake(answer)


def test_junk_in_the_stream(authority: Authority) -> None:
    client, server = pair(authority)
    shake(client, server)
    with pytest.raises(ProtocolError, match=r"the TLS stream of 127\.0\.0\.1 is broken"):
        client.decode(b"\0" * 100)
    assert client.close() is not None


def test_altered_record(authority: Authority) -> None:
    client, server = pair(authority)
    shake(client, server)
    record = bytearray(server.encode(b"hello"))
    record[-1] ^= 1
    # The words of OpenSSL, then those of OpenSSL 3.5.
    with pytest.raises(ProtocolError, match=r"bad record mac|record layer failure"):
        client.decode(bytes(record))


@versions
def test_close_notify(authority: Authority, version: ssl.TLSVersion) -> None:
    client, server = pair(authority, version)
    shake(client, server)
    last = server.encode(b"bye") + server.close()
    assert client.decode(last) == b"bye"
    assert client.eof
    assert client.decode(b"") == b""
    goodbye = client.close()
    assert goodbye
    assert server.decode(goodbye) == b""
    assert server.eof
    assert client.close() == b""
    with pytest.raises(ProtocolError, match="cannot send"):
        client.encode(b"x")


def test_close_before_the_handshake(authority: Authority) -> None:
    client, _ = pair(authority)
    assert client.close() == b""


class CountingLock:
    """A lock as context manager that counts how often it is taken, and is never taken twice."""

    def __init__(self) -> None:
        self.taken = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        assert self._lock.acquire(timeout=30)
        self.taken += 1

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_the_lock_covers_each_operation(authority: Authority) -> None:
    lock = CountingLock()
    client, server = pair(authority, lock=lock)
    shake(client, server)
    for operation in (
        lambda: client.encode(b"x"),
        lambda: client.decode(b""),
        lambda: client.handshake(b""),
        lambda: client.close(),
    ):
        before = lock.taken
        operation()
        assert lock.taken == before + 1


def test_two_threads_encode_and_decode(authority: Authority) -> None:
    client, server = pair(authority, lock=CountingLock())
    shake(client, server)
    rounds, block = 300, os.urandom(5000)
    incoming = [server.encode(block) for _ in range(rounds)]
    outgoing: list[bytes] = []
    decoded: list[bytes] = []

    def encode() -> None:
        for _ in range(rounds):
            outgoing.append(client.encode(block))

    def decode() -> None:
        for chunk in incoming:
            decoded.append(client.decode(chunk))

    threads = [threading.Thread(target=encode), threading.Thread(target=decode)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert b"".join(decoded) == block * rounds
    assert b"".join(map(server.decode, outgoing)) == block * rounds
