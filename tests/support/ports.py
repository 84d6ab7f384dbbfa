"""Ports of servers that come back. Knows sockets; knows no server."""

from __future__ import annotations

import errno
import socket

from tests.support.waiting import eventually

Address = tuple[str, int]

# Seconds for a connection to end that got such a port between the server's end and the hold.
_PATIENCE = 20.0


class HeldPorts:
    """Ports that the kernel gives to nobody while a server that had them is away.

    A dial there is refused, as nothing listens; who names the port may listen on it.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def hold(self, *addresses: Address) -> None:
        self.release()
        for address in addresses:
            held = socket.socket()
            self._sockets.append(held)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            eventually(
                lambda held=held, address=address: _bind(held, address),
                _PATIENCE,
                describe=f"nobody else has {address}",
            )

    def release(self) -> None:
        while self._sockets:
            self._sockets.pop().close()


def _bind(held: socket.socket, address: Address) -> bool:
    """Return False if somebody else has the port now."""
    try:
        held.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True
