"""The embedded nsqd as a process: what the conformance list does not ask for.

Slow readers, floods, certificates, unix sockets, the data folder, and refusals to start.
"""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import realnsq
from tests.support.rawclient import Client, Closed, request
from tests.support.servers import Pool, Server, Site, unique


@pytest.fixture
def here(server_pool: Pool) -> Iterator[Site]:
    """Embedded servers only."""
    site = Site("embedded", server_pool)
    yield site
    site.close()


def depth(server: Server, topic: str, channel: str) -> int:
    stats = request(server.http_address, "GET", f"/stats?format=json&topic={topic}").json
    (found,) = (c for c in stats["topics"][0]["channels"] if c["channel_name"] == channel)
    return int(found["depth"])


def clients(server: Server, topic: str, channel: str) -> int:
    stats = request(server.http_address, "GET", f"/stats?format=json&topic={topic}").json
    (found,) = (c for c in stats["topics"][0]["channels"] if c["channel_name"] == channel)
    return int(found["client_count"])


def test_a_slow_reader_is_dropped_and_holds_up_nobody(here: Site) -> None:
    nsqd = here.nsqd()
    topic = unique()
    slow, fast = here.client(nsqd), here.client(nsqd)
    slow.subscribe(topic, "slow", 2500, heartbeat_interval=1000)
    fast.subscribe(topic, "fast", 2500)
    producer = here.client(nsqd)
    body = bytes(500_000)
    for _ in range(60):
        producer.publish(topic, body)
    assert [len(message.body) for message in fast.messages(60)] == [len(body)] * 60
    # Most of it waits in the channel, not in a buffer for who does not read.
    assert depth(nsqd, topic, "slow") > 30
    here.eventually(lambda: clients(nsqd, topic, "slow") == 0)
    assert clients(nsqd, topic, "fast") == 1


def test_a_consumer_that_reads_again_gets_the_rest(here: Site) -> None:
    nsqd = here.nsqd()
    topic = unique()
    consumer, producer = here.client(nsqd), here.client(nsqd)
    consumer.subscribe(topic, "c", 2500)
    for _ in range(30):
        producer.publish(topic, bytes(500_000))
    assert depth(nsqd, topic, "c") > 0
    assert len(consumer.messages(30)) == 30


def test_small_messages_beyond_the_limit_of_the_buffer_all_arrive(here: Site) -> None:
    """More than one buffer's worth at once, with no FIN that would start the delivery again."""
    nsqd = here.nsqd()
    topic = unique()
    producer = here.client(nsqd)
    body = bytes(4000)
    mpub = struct.pack(">i", 1000) + (struct.pack(">i", len(body)) + body) * 1000
    producer.command(f"MPUB {topic}", mpub)
    producer.ok()
    consumer = here.client(nsqd)
    consumer.subscribe(topic, "c", 2500)
    assert len(consumer.messages(1000)) == 1000


def test_answers_arrive_while_the_client_still_sends(here: Site) -> None:
    """The error frame must not be lost in a reset (docs/protocol/commands#unread-body)."""
    client = here.client(here.nsqd())
    client.command("PUB t")
    body = bytes(3_000_000)
    try:
        client.send(struct.pack(">i", len(body)) + body)
    except Closed:
        pass  # nsqd may close before everything is sent
    client.error("E_BAD_MESSAGE PUB message too big 3000000 > 1048576")


def test_a_deleted_channel_ends_a_connection_with_unread_messages(here: Site) -> None:
    nsqd = here.nsqd()
    topic = unique()
    consumer = here.client(nsqd)
    consumer.subscribe(topic, "c", 100)
    here.client(nsqd).publish(topic, *[bytes(500_000)] * 10)
    assert request(nsqd.http_address, "POST", f"/topic/delete?topic={topic}").status == 200
    with pytest.raises(Closed):
        consumer.messages(11)


# -- TLS -----------------------------------------------------------------------------------------


@pytest.fixture
def strict(here: Site) -> Server:
    ca = f"-tls-root-ca-file={here.certificates.ca_file}"
    flags = (*here.certificates.flags, ca, "-tls-client-auth-policy=require-verify")
    return here.nsqd(*flags)


def test_a_client_certificate_is_demanded(here: Site, strict: Server) -> None:
    client = here.client(strict)
    assert client.identify(tls_v1=True)["tls_v1"] is True
    client.start_tls(here.certificates.client_context(with_certificate=True))
    client.ok()
    client.alive()
    stats = request(strict.http_address, "GET", "/ping")
    assert stats.status == 403  # the policy turns --tls-required on


def test_without_a_client_certificate_there_is_no_connection(here: Site, strict: Server) -> None:
    client = here.client(strict)
    client.identify(tls_v1=True)
    # With TLS 1.3 the client learns of it with its first read.
    with pytest.raises((ssl.SSLError, Closed)):
        client.start_tls(here.certificates.client_context())
        client.ok()


# -- starting ------------------------------------------------------------------------------------


def refusal(here: Site, *flags: str) -> str:
    with pytest.raises(RuntimeError) as caught:
        here.own_nsqd(*flags)
    return str(caught.value)


def test_unsupported_features_are_refused_and_not_ignored(here: Site) -> None:
    text = refusal(here, "-statsd-address=127.0.0.1:8125", "-statsd-interval=0")
    assert "failed to instantiate nsqd - --statsd-interval must be positive" in text
    text = refusal(here, *here.certificates.flags, "-tls-client-auth-policy=require")
    assert "--tls-client-auth-policy=require needs --tls-root-ca-file" in text
    assert "failed to build TLS config" in refusal(here, "-tls-cert=/missing", "-tls-key=/missing")


def test_one_data_folder_has_one_nsqd(here: Site) -> None:
    first = here.own_nsqd()
    text = refusal(here, f"-data-path={first.data_path}")
    assert "in use by another instance" in text
    assert first.stop() == 0


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.sock"
    command = [sys.executable, "-m", "gnsqsync.embedded", "nsqd", f"-tcp-address={path}"]
    process = subprocess.Popen([*command, "-http-address="], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    with process.stderr as log:
        assert any(line.endswith(f"TCP: listening on {path}\n") for line in log)
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(str(path))
            client.sendall(b"  V2PUB t\n\0\0\0\1x")
            assert client.recv(100) == b"\0\0\0\6\0\0\0\0OK"
        process.terminate()
        log.read()
    assert process.wait() == 0
    assert not path.exists()


# -- the data folder -----------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [("real", "embedded"), ("embedded", "real")])
def test_the_real_nsqd_and_this_one_read_each_others_files(
    server_pool: Pool, kinds: tuple[str, str]
) -> None:
    if realnsq.folder() is None:
        pytest.skip("no real nsqd")
    topic, bodies = unique(), [b"%d" % n * 50 for n in range(30)]
    first = Site(kinds[0], server_pool)
    second = Site(kinds[1], server_pool)
    try:
        server = first.own_nsqd("-mem-queue-size=5", "-max-bytes-per-file=1000")
        first.client(server).publish(topic, *bodies)
        assert server.stop() == 0
        other = second.own_nsqd(f"-data-path={server.data_path}")
        consumer = second.client(other)
        consumer.subscribe(topic, "c", 100)
        assert sorted(message.body for message in consumer.messages(30)) == sorted(bodies)
    finally:
        second.close()
        first.close()


def test_a_failed_start_loses_nothing(here: Site) -> None:
    server = here.own_nsqd()
    topic = unique()
    here.client(server).publish(topic, b"kept")
    assert server.stop() == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = refusal(here, f"-data-path={server.data_path}", f"-tcp-address=127.0.0.1:{port}")
        assert f"listen (127.0.0.1:{port}) failed" in text
        text = refusal(here, f"-data-path={server.data_path}", f"-http-address=127.0.0.1:{port}")
        assert f"listen (127.0.0.1:{port}) failed" in text
    server.restart()
    consumer = here.client(server)
    consumer.subscribe(topic, "c", 1)
    assert consumer.message().body == b"kept"


def test_a_bad_first_byte_is_no_harm(here: Site) -> None:
    nsqd = here.nsqd()
    client = Client(nsqd.tcp_address, b"GET / HTTP/1.1\r\n\r\n")
    client.fatal("E_BAD_PROTOCOL")
    client.close()
    here.client(nsqd).publish(unique(), b"served as ever")
