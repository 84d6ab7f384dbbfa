"""Ports that nobody else gets: of servers that come back, and of servers that are told a port.

Knows sockets. Knows no server.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.support.waiting import eventually

Address = tuple[str, int]

# A port of 127.0.0.1 where a dial is refused: the standard gives it to a service that nobody runs.
REFUSED_PORT = 1

# Seconds for a connection to end that got such a port between the server's end and the hold.
_PATIENCE = 20.0


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
            eventually(
                lambda held=held, address=address: _bind(held, address),
                _PATIENCE,
                describe=f"nobody else has {address}",
            )

    def release(self) -> None:
        while self._sockets:
            self._sockets.pop().close()


@contextmanager
def free_ports(count: int = 1, *, in_a_row: bool = False) -> Iterator[list[int]]:
    """Yield free ports of 127.0.0.1, which the kernel gives to nobody until the end of the block.

    A dial is refused, because nothing listens there. A server that names the port and sets
    SO_REUSEADDR may listen.
    """
    with ExitStack() as stack:
        while True:
            ports: list[int] = []
            for number in range(count):
                held = stack.enter_context(socket.socket())
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                wanted = ports[0] + number if in_a_row and ports else 0
                try:
                    if not _bind(held, ("127.0.0.1", wanted)):
                        break
                except OverflowError:
                    break  # Behind the last port there is none.
                ports.append(held.getsockname()[1])
            else:
                yield ports
                return
            stack.close()


def _bind(held: socket.socket, address: Address) -> bool:
    """Return False if somebody else has the port now."""
    try:
        held.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True
