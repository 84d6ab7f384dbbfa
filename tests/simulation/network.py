"""A network in memory: hosts, links with their faults, TCP connections, names.

Knows bytes and time; knows nothing of NSQ. What arrives on a connection keeps its order, as TCP has
it; different connections overtake each other.
"""

from __future__ import annotations

import errno
import math
import os
import random
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gnsqsync.addresses import Address
from tests.simulation.scheduler import Scheduler, SimTask, Timer

__all__ = ["Cutter", "End", "Handler", "Link", "Network", "SimSocket"]

# What a SYN that is lost waits before it is sent again, as Linux does it.
_SYN_AGAIN = 1.0
_Arrival = Callable[[], None]


class Handler(Protocol):
    """The server's side of a connection: called when something has come. It must not wait."""

    def readable(self) -> None:
        """Bytes, the peer's EOF, or its reset."""

    def writable(self) -> None:
        """There is room again."""


@dataclass
class Link:
    """The way between two hosts. Times in seconds, sizes in bytes.

    ``cut``: nothing arrives, neither ``to`` a host nor from it, until ``Network.heal``.
    """

    latency: float = 0.0002
    jitter: float = 0.0001
    # How much of one connection may be under way or unread, in each direction.
    window: int = 65536
    # What is sent at once arrives in pieces of at most so much.
    segment: int = 1 << 20
    # Of each piece, to be lost once and sent again.
    loss: float = 0.0
    again: float = 0.2


class _Way:
    """One direction of a connection: bytes under way, in their order."""

    __slots__ = ("arrives_at", "held", "size")

    def __init__(self) -> None:
        self.arrives_at = 0.0
        # Bytes under way.
        self.size = 0
        # What waits for a link to be healed.
        self.held: deque[_Arrival] = deque()


class End:
    """One end of a connection, as its kernel sees it."""

    __slots__ = (
        "address",
        "began_at",
        "ended_at",
        "handler",
        "has_eof",
        "host",
        "is_closed",
        "is_gone",
        "is_inherited",
        "is_reset",
        "network",
        "number",
        "owner",
        "peer",
        "received",
        "sent_eof",
        "size",
        "stops_reading",
        "total",
        "waiters",
        "way",
    )

    def __init__(self, network: Network, number: int, host: str, address: str) -> None:
        self.network = network
        self.number = number
        self.host = host
        # The owner of the task that has dialled.
        task = network.scheduler.current
        self.owner = "" if task is None else task.owner
        self.address = address
        self.peer: End
        self.way = _Way()
        self.received: deque[bytes] = deque()
        self.size = 0
        self.total = 0
        self.has_eof = False
        self.is_reset = False
        self.sent_eof = False
        self.is_closed = False
        # The machine has lost power: it answers nothing, and knows nothing of this when it is back.
        self.is_gone = False
        self.stops_reading = False
        # In the child of a fork: it is the parent's.
        self.is_inherited = False
        self.began_at = network.scheduler.now
        # When the EOF or the reset came.
        self.ended_at = math.inf
        self.handler: Handler | None = None
        self.waiters: list[SimTask] = []

    def room(self) -> int:
        """How many bytes a send takes now."""
        link = self.network.link(self.host, self.peer.host)
        return max(0, link.window - self.way.size - self.peer.size)

    def send(self, data: bytes | memoryview) -> int:
        if self.is_inherited:
            raise AssertionError(f"the child of a fork sends {bytes(data[:40])!r} for its parent")
        if self.is_reset:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        if self.sent_eof or self.is_closed:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        taken = bytes(data[: self.room()])
        if taken:
            self.network.on_sent(self, taken, data)
            self.network.carry(self, taken)
        return len(taken)

    def take(self, size: int = 1 << 30) -> bytes:
        """What has arrived, b"" for nothing."""
        if not self.received:
            return b""
        was_full = self.peer.room() == 0
        data = self.received.popleft()
        if len(data) > size:
            self.received.appendleft(data[size:])
            data = data[:size]
        self.size -= len(data)
        if was_full and not self.is_closed:
            # The sender learns of the room when the acknowledgement is there.
            self.network.signal(self, self.peer.has_room)
        return data

    def end_sending(self) -> None:
        if self.is_inherited:
            raise AssertionError("the child of a fork ends a connection of its parent")
        if not (self.sent_eof or self.is_closed or self.is_reset):
            self.sent_eof = True
            self.network.signal(self, self.peer.eof_arrives)

    def reset(self) -> None:
        """End it as a kernel does for a process that has not read all."""
        if not self.is_closed:
            self.is_closed = True
            self.network.closed(self)
            if not self.is_reset:
                self.network.signal(self, self.peer.reset_arrives)
            self.wake()

    def close(self) -> None:
        if self.is_closed or self.is_inherited:
            return
        if self.received and not self.is_reset:
            self.reset()
            return
        self.end_sending()
        self.is_closed = True
        self.network.closed(self)
        self.wake()

    def vanish(self) -> None:
        """The machine loses its power."""
        self.is_closed = self.is_gone = True
        self.network.closed(self)

    # -- what arrives ----------------------------------------------------------------------------

    def data_arrives(self, data: bytes) -> None:
        if self.is_closed:
            # Nobody has this port: the kernel says so.
            self.network.signal(self, self.peer.reset_arrives)
            return
        self.received.append(data)
        self.size += len(data)
        self.total += len(data)
        self._tell()

    def eof_arrives(self) -> None:
        if not self.is_closed and not self.is_reset:
            self.has_eof = True
            self.ended_at = min(self.ended_at, self.network.scheduler.now)
            self._tell()

    def reset_arrives(self) -> None:
        if not self.is_closed and not self.is_reset:
            self.is_reset = True
            self.ended_at = min(self.ended_at, self.network.scheduler.now)
            self._tell()

    def has_room(self) -> None:
        if self.handler is not None:
            self.handler.writable()
        self.wake()

    def _tell(self) -> None:
        if self.handler is not None:
            self.handler.readable()
        self.wake()

    def wake(self) -> None:
        for task in self.waiters:
            self.network.scheduler.wake(task)

    def __repr__(self) -> str:
        return f"<end {self.number} of {self.host}>"


class Cutter:
    """Ends the one connect() that it was given to."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.is_cut = False
        self.waiter: SimTask | None = None
        self._scheduler = scheduler

    def cut(self) -> None:
        self.is_cut = True
        if self.waiter is not None:
            self._scheduler.wake(self.waiter)


class Network:
    """Hosts by name. A server listens on (host, port) with a function that takes an End."""

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self.scheduler = scheduler
        self.rng = rng
        self.usual = Link()
        self._links: dict[tuple[str, str], Link] = {}
        # (from, to) of what is cut.
        self._cut: dict[tuple[str, str], None] = {}
        self.listeners: dict[tuple[str, int], Callable[[End], None]] = {}
        # Names that are looked up: the hosts behind one, or none for a name that is not known.
        self.names: dict[str, list[str]] = {}
        self.dns_seconds = 0.001
        self.open: dict[End, None] = {}
        self._ends: dict[End, None] = {}
        self._numbers = 0
        # Told what an end gives to its kernel: what that took, and what it was offered.
        self.on_sent: Callable[[End, bytes, bytes | memoryview], object] = lambda *what: None
        # Machines without power: they answer nothing.
        self.off: dict[str, None] = {}

    # -- links -----------------------------------------------------------------------------------

    def link(self, one: str, other: str) -> Link:
        return self._links.get((one, other), self.usual)

    def set_link(self, one: str, other: str, link: Link) -> None:
        self._links[one, other] = self._links[other, one] = link

    def cut(self, source: str, target: str) -> None:
        """Nothing that ``source`` sends arrives at ``target``; not the other way round."""
        self._cut[source, target] = None

    def heal(self, source: str, target: str) -> None:
        """What was held arrives soon: TCP sends it again."""
        self._cut.pop((source, target), None)
        for end in list(self._ends):
            if end.host == source and end.peer.host == target and end.way.held:
                when = self.scheduler.now + self.rng.uniform(0.0, 0.5)
                self.scheduler.at(when, lambda end=end: self._arrive_again(end))

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    def _is_away(self, host: str, other: str) -> bool:
        """Whether a SYN gets no answer."""
        return other in self.off or self.is_cut(host, other) or self.is_cut(other, host)

    # -- what is under way -----------------------------------------------------------------------

    def carry(self, end: End, data: bytes) -> None:
        link = self.link(end.host, end.peer.host)
        for start in range(0, len(data), link.segment):
            piece = data[start : start + link.segment]
            end.way.size += len(piece)
            self._send(end, link, lambda piece=piece: self._data_arrives(end, piece))

    def _data_arrives(self, end: End, piece: bytes) -> None:
        end.way.size -= len(piece)
        end.peer.data_arrives(piece)

    def signal(self, end: End, arrival: _Arrival) -> None:
        """Something without bytes, to the peer of ``end``: EOF, reset, an acknowledgement."""
        self._send(end, self.link(end.host, end.peer.host), arrival)

    def _send(self, end: End, link: Link, arrival: _Arrival) -> None:
        if end.is_gone:
            return
        when = self.scheduler.now + link.latency + self.rng.random() * link.jitter
        if link.loss and self.rng.random() < link.loss:
            when += link.again
        when = end.way.arrives_at = max(when, end.way.arrives_at)
        self.scheduler.at(when, self._arrive(end, arrival))

    def _arrive(self, end: End, arrival: _Arrival) -> _Arrival:
        def arrive() -> None:
            # Behind what is held, also when the link is whole again: TCP keeps the order.
            if end.way.held or self.is_cut(end.host, end.peer.host):
                end.way.held.append(arrival)
            else:
                self._deliver(end, arrival)

        return arrive

    def _arrive_again(self, end: End) -> None:
        """Deliver what was held, unless the link is cut once more."""
        if self.is_cut(end.host, end.peer.host):
            return
        held, end.way.held = end.way.held, deque()
        for arrival in held:
            self._deliver(end, arrival)

    def _deliver(self, end: End, arrival: _Arrival) -> None:
        if not end.peer.is_gone:
            arrival()
        elif end.peer.host not in self.off:
            # The machine is on again, and does not know the connection.
            end.reset_arrives()

    def closed(self, end: End) -> None:
        self.open.pop(end, None)
        if end.peer.is_closed:
            self._ends.pop(end, None)
            self._ends.pop(end.peer, None)

    def leave_to_parent(self) -> None:
        """In the child of a fork: the connections of the process are not its own."""
        for end in self._ends:
            end.is_inherited = end.host == "client"

    # -- servers ---------------------------------------------------------------------------------

    def ends_of(self, host: str) -> list[End]:
        return [end for end in self._ends if end.host == host and not end.is_closed]

    def dial(self, host: str, address: tuple[str, int]) -> End | None:
        """A connection to a server at once, for servers; None when there is none to be had.

        The time that the SYN takes is left out.
        """
        if self._is_away(host, address[0]):
            return None
        accept = self.listeners.get(address)
        return None if accept is None else self._establish(host, address, accept)

    def _establish(self, host: str, address: tuple[str, int], accept: Callable[[End], None]) -> End:
        self._numbers += 2
        end = End(self, self._numbers, host, f"{host}:{30000 + self._numbers}")
        peer = End(self, self._numbers + 1, address[0], f"{address[0]}:{address[1]}")
        end.peer, peer.peer = peer, end
        self._ends[end] = self._ends[peer] = None
        self.open[end] = None
        accept(peer)
        return end

    # -- clients ---------------------------------------------------------------------------------

    def cutter(self) -> Cutter:
        return Cutter(self.scheduler)

    def connect(
        self, host: str, address: Address, timeout: float, cutter: object = None
    ) -> SimSocket:
        """As Runtime.connect, from ``host``. By a task."""
        assert cutter is None or isinstance(cutter, Cutter)
        until = self.scheduler.now + timeout
        targets = self._look_up(address, until, cutter)
        failures: list[OSError] = []
        for index, target in enumerate(targets):
            left = (until - self.scheduler.now) / (len(targets) - index)
            try:
                return self._connect_one(host, address, target, left, cutter)
            except OSError as error:
                if cutter is not None and cutter.is_cut:
                    text = f"the dial of {address} was cut short"
                    raise OSError(errno.ECANCELED, text) from error
                failures.append(error)
        for error in failures:
            if error.errno is not None:
                raise OSError(error.errno, f"cannot connect to {address}: {error.strerror}")
        raise TimeoutError(f"no connection to {address} within {timeout:g} seconds")

    def _look_up(self, address: Address, until: float, cutter: Cutter | None) -> list[str]:
        if address.host not in self.names:
            return [address.host]
        self._wait(cutter, "a name", min(until, self.scheduler.now + self.dns_seconds))
        found = self.names[address.host]
        if not found:
            text = f"cannot look up the host of {address}: Name or service not known"
            raise socket.gaierror(socket.EAI_NONAME, text)
        return found

    def _wait(self, cutter: Cutter | None, what: str, until: float) -> bool:
        if cutter is None:
            return self.scheduler.park(what, until)
        cutter.waiter = self.scheduler.current
        try:
            if not cutter.is_cut:
                self.scheduler.park(what, until)
        finally:
            cutter.waiter = None
        if cutter.is_cut:
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        return False

    def _connect_one(
        self, host: str, address: Address, target: str, timeout: float, cutter: Cutter | None
    ) -> SimSocket:
        scheduler = self.scheduler
        until = scheduler.now + timeout
        link = self.link(host, target)
        where = (target, address.port)
        again = _SYN_AGAIN
        while True:
            sent_at = scheduler.now
            answered_at = sent_at + 2 * link.latency + self.rng.random() * link.jitter
            if not self._is_away(host, target) and answered_at <= until:
                self._wait(cutter, f"a connection to {address}", answered_at)
                accept = self.listeners.get(where)
                if accept is None:
                    raise ConnectionRefusedError(
                        errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)
                    )
                return SimSocket(self._establish(host, where, accept), str(address))
            self._wait(cutter, f"a connection to {address}", min(until, sent_at + again))
            if scheduler.now >= until:
                raise TimeoutError("timed out")
            again *= 2


class SimSocket:
    """A Socket of the runtime, and what requests needs of one of the socket module."""

    def __init__(self, end: End, peer: str) -> None:
        self.end = end
        self.peer = peer
        self.local = end.address
        self._scheduler = end.network.scheduler
        self._timeout: float | None = None

    # -- gnsqsync.runtime.base.Socket --------------------------------------------------------------

    def _wait(self, is_there: Callable[[], object], what: str, timeout: float | None) -> bool:
        scheduler, end = self._scheduler, self.end
        until = None
        if timeout is not None and timeout < math.inf:
            until = scheduler.now + max(0.0, timeout)
        task = scheduler.current
        assert task is not None, "a timer or a server waits for a socket"
        end.waiters.append(task)
        try:
            while not is_there():
                if until is not None and scheduler.now >= until:
                    return False
                scheduler.park(what, until)
            return True
        finally:
            end.waiters.remove(task)

    def _is_readable(self) -> bool:
        end = self.end
        return bool(
            end.received or end.has_eof or end.is_reset or end.is_closed or end.stops_reading
        )

    def recv(self, size: int) -> bytes:
        self._scheduler.point()
        end = self.end
        if not self._is_readable() and not self._wait(
            self._is_readable, f"bytes from {self.peer}", self._timeout
        ):
            raise TimeoutError(f"nothing from {self.peer} for {self._timeout:g} seconds")
        if end.is_closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        data = end.take(size)
        if data or end.has_eof or end.stops_reading:
            return data
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    def receive(self, chunks: deque[bytes], size: int) -> None:
        chunks.append(self.recv(size))

    def send(self, data: bytes | memoryview) -> int:
        self._scheduler.point()
        return self.end.send(data)

    def wait_writable(self, timeout: float | None) -> bool:
        self._scheduler.point()
        end = self.end
        return self._wait(
            lambda: end.room() or end.is_reset or end.sent_eof or end.is_closed,
            f"room at {self.peer}",
            timeout,
        )

    def set_read_timeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def peer_has_ended(self) -> bool:
        end = self.end
        return end.has_eof and not end.sent_eof and not end.is_reset

    def end_sending(self) -> None:
        self._scheduler.point()
        self.end.end_sending()

    def shutdown(self, how: int = socket.SHUT_RDWR) -> None:
        self._scheduler.point()
        self.end.end_sending()
        self.end.stops_reading = True
        self.end.wake()

    def close(self) -> None:
        self._scheduler.point()
        self.end.close()

    def __del__(self) -> None:
        # As a socket that nobody has any more.
        self.end.close()

    def abandon(self) -> None:
        self.end.network.closed(self.end)

    def fileno(self) -> int:
        return -1 if self.end.is_closed else self.end.number

    def __repr__(self) -> str:
        return f"<socket {self.local} to {self.peer}>"


def later(scheduler: Scheduler, timer: Timer | None, when: float, call: _Arrival) -> Timer:
    """Set a timer anew."""
    if timer is not None:
        timer.cancel()
    return scheduler.at(when, call)
