"""The fault proxy itself: each trouble comes at its byte, and nothing else changes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.faultproxy import DOWN, UP, FaultProxy, Trouble, rough

WAIT = 10.0


class Peer:
    """A client's socket through the proxy, and the server's end of the same link."""

    def __init__(self, proxy: FaultProxy, listener: socket.socket) -> None:
        self.client = socket.create_connection(proxy.address, timeout=WAIT)
        self.server, _ = listener.accept()
        self.server.settimeout(WAIT)

    def close(self) -> None:
        self.client.close()
        self.server.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT)
        yield listener


def proxy_with(listener: socket.socket, *troubles: Trouble) -> FaultProxy:
    return FaultProxy(listener.getsockname(), plan=lambda chance: list(troubles))


def read_all(sock: socket.socket) -> bytes:
    parts = []
    while part := sock.recv(65536):
        parts.append(part)
    return b"".join(parts)


def read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        assert part, data
        data += part
    return data


def test_without_a_plan_everything_passes(listener: socket.socket) -> None:
    with FaultProxy(listener.getsockname()) as proxy:
        peer = Peer(proxy, listener)
        data = bytes(range(256)) * 4096
        sender = threading.Thread(target=peer.client.sendall, args=(data,))
        sender.start()
        assert read(peer.server, len(data)) == data
        sender.join()
        peer.server.sendall(b"back")
        assert read(peer.client, 4) == b"back"
        # One direction may end before the other.
        peer.client.shutdown(socket.SHUT_WR)
        assert peer.server.recv(1) == b""
        peer.server.sendall(b"later")
        assert read(peer.client, 5) == b"later"
        peer.close()


@pytest.mark.parametrize("at", [0, 1, 7, 9])
def test_a_cut_comes_at_its_byte(listener: socket.socket, at: int) -> None:
    with proxy_with(listener, Trouble(UP, "cut", at)) as proxy:
        peer = Peer(proxy, listener)
        peer.client.sendall(b"0123456789")
        assert read_all(peer.server) == b"0123456789"[:at]
        assert peer.client.recv(1) == b""
        peer.close()


def test_a_reset_is_a_reset_on_both_sides(listener: socket.socket) -> None:
    with proxy_with(listener, Trouble(DOWN, "reset", 3)) as proxy:
        peer = Peer(proxy, listener)
        peer.server.sendall(b"abcdef")
        with pytest.raises(ConnectionResetError):
            while peer.client.recv(10):
                pass
        with pytest.raises(ConnectionResetError):
            peer.server.recv(1)
        peer.close()


def test_a_drip_is_byte_after_byte(listener: socket.socket) -> None:
    with proxy_with(listener, Trouble(UP, "drip", 2, 3)) as proxy:
        peer = Peer(proxy, listener)
        peer.client.sendall(b"0123456789")
        assert read(peer.server, 10) == b"0123456789"
        peer.close()


def test_a_stall_ends(listener: socket.socket) -> None:
    with proxy_with(listener, Trouble(UP, "stall", 2, 0.3)) as proxy:
        peer = Peer(proxy, listener)
        began = time.monotonic()
        peer.client.sendall(b"0123")
        assert read(peer.server, 4) == b"0123"
        assert time.monotonic() - began >= 0.3
        peer.close()


def test_a_dropped_direction_leaves_the_other_one(listener: socket.socket) -> None:
    with proxy_with(listener, Trouble(UP, "drop", 2)) as proxy:
        peer = Peer(proxy, listener)
        peer.client.sendall(b"0123")
        assert read(peer.server, 2) == b"01"
        peer.server.sendall(b"back")
        assert read(peer.client, 4) == b"back"
        peer.server.settimeout(0.1)
        with pytest.raises(TimeoutError):
            peer.server.recv(1)
        peer.close()


def test_orders_reach_links_that_live(listener: socket.socket) -> None:
    told: list[Trouble] = []
    with FaultProxy(listener.getsockname(), told=told.append) as proxy:
        peer = Peer(proxy, listener)
        peer.client.sendall(b"before")
        assert read(peer.server, 6) == b"before"
        proxy.order(Trouble(UP, "cut", 3))
        peer.client.sendall(b"behind")
        assert read_all(peer.server) == b"beh"
        assert [trouble.kind for trouble in told] == ["cut"]
        peer.close()


def test_proxy_refuses_and_listens_again_on_the_same_port(listener: socket.socket) -> None:
    with FaultProxy(listener.getsockname()) as proxy:
        peer = Peer(proxy, listener)
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(proxy.address, timeout=WAIT)
        peer.client.sendall(b"x")
        assert read(peer.server, 1) == b"x"
        proxy.listen()
        again = Peer(proxy, listener)
        for one in (peer, again):
            one.close()


def test_close_ends_what_is_stalled(listener: socket.socket) -> None:
    proxy = proxy_with(listener, Trouble(UP, "stall", 0, 60.0))
    peer = Peer(proxy, listener)
    peer.client.sendall(b"x")
    began = time.monotonic()
    proxy.close()
    assert time.monotonic() - began < 30
    peer.close()


def test_a_server_that_is_not_there_resets_the_client(listener: socket.socket) -> None:
    # The reset may come while the client still looks whether it is connected.
    with FaultProxy(("127.0.0.1", 1)) as proxy, pytest.raises(ConnectionResetError):
        with socket.create_connection(proxy.address, timeout=WAIT) as client:
            client.sendall(b"x")
            client.recv(1)


def test_the_same_seed_makes_the_same_troubles() -> None:
    import random

    plans = [[rough(random.Random(f"{seed}:{n}")) for n in range(50)] for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert {trouble.kind for plan in plans[0] for trouble in plan} == {
        "cut",
        "reset",
        "stall",
        "drip",
        "drop",
    }
