"""Listening sockets for the address forms of nsqd's flags."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gevent import socket

from gnsqsync.daemon.options import OptionsError
from gnsqsync.embedded.listeners import address_text, listen, port_of, remove_unix


def test_tcp() -> None:
    with listen("127.0.0.1:0") as sock:
        assert address_text(sock) == f"127.0.0.1:{port_of(sock)}"
        socket.create_connection(sock.getsockname(), timeout=10).close()
    with listen("localhost:0") as sock:
        assert port_of(sock) > 0


def test_ipv6() -> None:
    try:
        with listen("[::1]:0") as sock:
            assert address_text(sock) == f"[::1]:{port_of(sock)}"
    except OptionsError:
        pytest.skip("no IPv6 loopback here")


def test_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "nsqd.sock")
    with listen(path) as sock:
        assert (address_text(sock), port_of(sock)) == (path, -1)
    remove_unix(path)
    assert not os.path.exists(path)
    remove_unix(path)
    remove_unix("127.0.0.1:4150")


def test_a_file_that_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("kept")
    remove_unix(str(path))
    assert path.read_text() == "kept"


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:http", "bad port"),
        ("127.0.0.1:65536", "bad port"),
        ("127.0.0.1:", "bad port"),
        ("/no/such/folder/nsqd.sock", "no such file or directory"),
    ],
)
def test_addresses_that_do_not_work(address: str, reason: str) -> None:
    with pytest.raises(OptionsError) as caught:
        listen(address)
    assert str(caught.value).startswith(f"listen ({address}) failed - ")
    assert reason in str(caught.value)


def test_an_address_in_use() -> None:
    with listen("127.0.0.1:0") as sock:
        with pytest.raises(OptionsError, match="address already in use"):
            listen(address_text(sock))
