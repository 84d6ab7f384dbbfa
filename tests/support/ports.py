"""Ports of servers that come back. Knows sockets. Knows no server."""

from __future__ import annotations

import socket

Address = tuple[str, int]


class HeldPorts:
    """Ports that the kernel gives to no other process while their server is away.

    A dial is refused, because nothing listens there. A process that names the port may listen.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def hold(self, *addresses: Address) -> None:
        self.release()
        for address in addresses:
            held = socket.socket()
            self._sockets.append(held)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(address)

    def release(self) -> None:
        while self._sockets:
            self._sockets.pop().close()
