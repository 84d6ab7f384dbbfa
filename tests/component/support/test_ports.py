"""Ports that are kept for servers that come back."""

from __future__ import annotations

import socket

from tests.support import ports


def test_a_port_is_held_when_a_connection_that_got_it_has_ended() -> None:
    with socket.socket() as held, socket.socket() as taker:
        taker.bind(("127.0.0.1", 0))
        address = taker.getsockname()
        assert not ports._bind(held, address)
        taker.close()
        assert ports._bind(held, address)
