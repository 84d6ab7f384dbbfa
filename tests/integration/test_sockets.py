"""Unix sockets, IPv6, local addresses, and what is set on a socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnsqsync import Message, NsqdHTTP, Reader, Writer
from gnsqsync.errors import NotSent
from tests.integration.conftest import Client, address, url
from tests.support.servers import Server, Site
from tests.support.waiting import LIMIT, eventually
from tests.support.worlds import World


class UnixServer(Server):
    """An nsqd whose TCP protocol and HTTP API are on unix sockets."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind, "nsqd")
        self.path = self.folder / "nsqd.sock"
        self.http_path = self.folder / "http.sock"
        self.flags.append(f"-tcp-address={self.path}")
        self.flags.append(f"-http-address={self.http_path}")

    def start(self) -> Server:
        process = self._spawn()

        def listens() -> bool:
            assert process.poll() is None, self.log
            # HTTP comes last.
            with socket.socket(socket.AF_UNIX) as sock:
                return not sock.connect_ex(str(self.http_path))

        eventually(listens, LIMIT, describe=lambda: self.log)
        return self


@pytest.fixture
def unix_nsqd(server_kind: str) -> Iterator[UnixServer]:
    server = UnixServer(server_kind)
    try:
        server.start()
        yield server
    finally:
        server.discard()


def round_trip(
    client: Client, where: str, topic: str, got: list[Message] | None = None, **options: Any
) -> tuple[Reader, Writer]:
    """A message there and back over ``where``; that and later ones are in ``got``."""
    world = client.world
    got = [] if got is None else got
    writer = Writer(where, runtime=world.runtime, **options)
    client._open.append(writer)
    writer.publish(topic, "x")
    reader = client.reader(topic, got.append, nsqd_tcp_addresses=where, **options)
    reader.start(block=False)
    world.eventually(lambda: got)
    assert got[0].body == b"x"
    assert got[0].nsqd_address == where
    return reader, writer


def test_a_unix_socket(client: Client, unix_nsqd: UnixServer, world: World, topic: str) -> None:
    where = f"unix://{unix_nsqd.path}"
    reader, writer = round_trip(client, where, topic)
    assert reader.stats().connections[0].address == where
    assert writer.stats().connections[0].address == where
    assert repr(writer) == f"<Writer to {where}>"


def test_a_unix_socket_that_comes_back(
    client: Client, unix_nsqd: UnixServer, world: World, topic: str
) -> None:
    got: list[Message] = []
    _, writer = round_trip(client, f"unix://{unix_nsqd.path}", topic, got)
    unix_nsqd.restart()
    world.eventually(lambda: not writer.is_connected)
    writer.publish(topic, "again", timeout=60)
    # The first one may come again: nsqd could end before it had read the FIN.
    world.eventually(lambda: b"again" in [message.body for message in got])


def test_a_clean_restart_on_a_unix_socket_puts_nothing_in_doubt(
    client: Client, unix_nsqd: UnixServer, world: World, topic: str
) -> None:
    """Behind the end the kernel takes nothing. On greenlets nobody has read the end by then."""
    writer = client.keep(Writer(f"unix://{unix_nsqd.path}", runtime=world.runtime))
    for _ in range(3):
        for number in range(3):
            writer.publish(topic, f"{number}")
        unix_nsqd.restart()
        writer.publish(topic, "behind", timeout=60)
    assert writer.stats().outcome_unknown == 0


def test_the_http_api_on_a_unix_socket(
    client: Client, unix_nsqd: UnixServer, world: World, topic: str
) -> None:
    reader, _ = round_trip(client, f"unix://{unix_nsqd.path}", topic)
    with NsqdHTTP(f"unix://{unix_nsqd.http_path}", runtime=world.runtime) as http:
        assert (http.ping(), http.info().http_port) == ("OK", -1)
        http.pub(topic, b"over HTTP")
        world.eventually(lambda: reader.stats().finished == 2)
        unix_nsqd.restart()
        assert [found.topic_name for found in http.stats().topics] == [topic]
    unix_nsqd.stop()
    assert not unix_nsqd.http_path.exists()


@pytest.mark.parametrize("listener", ["tcp", "http"])
def test_nsqlookupd_has_no_unix_sockets(server_kind: str, tmp_path: Path, listener: str) -> None:
    path = tmp_path / "nsqlookupd.sock"
    server = Server(server_kind, "nsqlookupd", [f"-{listener}-address={path}"])
    try:
        assert server.run_to_the_end() == 1
        words = f"listen ({path}) failed - listen tcp: address {path}: missing port in address"
        assert words in server.log
    finally:
        server.discard()


def test_a_unix_socket_where_nobody_is(world: World, tmp_path: Path) -> None:
    where = f"unix://{tmp_path}/none.sock"
    with (
        Writer(where, runtime=world.runtime) as writer,
        pytest.raises(NotSent, match=f"cannot connect to {where}"),
    ):
        writer.publish("t", "x", timeout=0.2)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_ipv6(client: Client, site: Site, world: World, topic: str) -> None:
    if not has_ipv6():
        assert os.environ.get("CI") != "true", "this machine has no IPv6 on its loopback"
        pytest.skip("this machine has no IPv6 on its loopback")
    nsqd = site.own_nsqd("-tcp-address=[::1]:0")
    where = f"[::1]:{nsqd.tcp_address[1]}"
    reader, _ = round_trip(client, where, topic)
    assert reader.stats().connections[0].address == where


def test_a_local_address(client: Client, nsqd: Server, world: World, topic: str) -> None:
    round_trip(client, address(nsqd), topic, local_addr="127.0.0.2")
    with NsqdHTTP(url(nsqd)) as http:
        stats = http.stats(topic=topic, include_clients=True)
    remotes = [c.remote_address for c in stats.topics[0].channels[0].clients]
    assert [remote.rpartition(":")[0] for remote in remotes] == ["127.0.0.2"]


def test_a_local_address_that_is_not_ours(nsqd: Server, world: World) -> None:
    with (
        Writer(address(nsqd), runtime=world.runtime, local_addr="192.0.2.1") as writer,
        pytest.raises(NotSent, match=r"cannot bind 192\.0\.2\.1:0"),
    ):
        writer.publish("t", "x", timeout=0.2)


def test_no_delay_and_keepalive_are_on(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    reader, writer = round_trip(client, address(nsqd), topic)
    connections = [
        *writer._publisher().pool.table.connections(),
        *reader._running().subscription.connections(),
    ]
    assert len(connections) == 2
    for connection in connections:
        assert connection._stream is not None
        with socket.socket(fileno=os.dup(connection._stream._sock.fileno())) as sock:
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_names_that_nsqd_is_told(client: Client, nsqd: Server, world: World, topic: str) -> None:
    told = {"client_id": "me", "hostname": "here", "user_agent": "mine/1"}
    round_trip(client, address(nsqd), topic, topology_region="eu", topology_zone="eu-1", **told)
    with NsqdHTTP(url(nsqd)) as http:
        stats = http.stats(topic=topic, include_clients=True)
    (seen,) = stats.topics[0].channels[0].clients
    assert (seen.client_id, seen.hostname, seen.user_agent) == ("me", "here", "mine/1")
