"""The floor on gevent: the loops of floor.py on gevent's sockets, and callers that share a send.

gevent's recv tries first and waits only when there is nothing, so consuming costs the same.
"""

from __future__ import annotations

import socket as native

import floor
import gevent
import measure
import rawnsq
from gevent import socket
from measure import Meter, Order


def connect(host_port: tuple[str, int], transport: str = "", ca_file: str = "") -> socket.socket:
    sock = socket.create_connection(host_port)
    rawnsq.greet(sock, host_port[0])
    return sock


# The loops of floor.py are those of this one, on other sockets.
rawnsq.connect = connect


class Gathering:
    """One connection for many greenlets: all that were queued in a turn of the loop share a send.

    The first to queue something has the loop send at the end of its turn; a greenlet of its own
    reads the answers, in order.
    """

    def __init__(self, order: Order) -> None:
        self._sock = connect(order.host_port)
        self._head = f"PUB {order.topic}\n".encode()
        self._commands: list[bytes] = []
        self._owners: list[gevent.Greenlet] = []
        self._waiting: list[gevent.Greenlet] = []
        self._hub = gevent.get_hub()
        gevent.spawn(self._read)

    def publish(self, body: bytes) -> None:
        if not self._commands:
            self._hub.loop.run_callback(self._send)
        self._commands.append(b"".join((self._head, rawnsq.SIZE.pack(len(body)), body)))
        self._owners.append(gevent.getcurrent())
        self._hub.switch()

    def _send(self) -> None:
        data = b"".join(self._commands)
        self._waiting += self._owners
        del self._commands[:], self._owners[:]
        # From the hub, which may not wait: some kilobytes fit into the kernel's buffer.
        sent = native.socket.send(self._sock._sock, data)
        if sent != len(data):
            raise rawnsq.Refused("the kernel's buffer is full")

    def _read(self) -> None:
        reply = b""
        while True:
            more = self._sock.recv(rawnsq.CHUNK)
            if not more:
                raise rawnsq.Refused("nsqd closed the connection")
            reply += more
            count = min(len(reply) // len(rawnsq.OK), len(self._waiting))
            if reply[: count * len(rawnsq.OK)] != rawnsq.OK * count:
                raise rawnsq.Refused(f"unexpected {reply!r}")
            reply = reply[count * len(rawnsq.OK) :]
            owners = self._waiting[:count]
            del self._waiting[:count]
            for owner in owners:
                self._hub.loop.run_callback(owner.switch)


def publish(order: Order, meter: Meter) -> None:
    if order.callers == 1:
        floor.publish(order, meter)
    else:
        gathering, body = Gathering(order), order.body
        measure.in_greenlets(order, meter, lambda: gathering.publish(body))


if __name__ == "__main__":
    measure.main(
        {
            "publish": publish,
            "publish_many": floor.publish_many,
            "consume": floor.consume,
            "latency": floor.consume,
        },
        ("gevent",),
    )
