"""A TCP proxy with faults: it cuts at a byte, stalls, drips, drops one direction, or resets.

Knows bytes and their positions, not their meaning. It never reorders or changes a byte. Its plain
threads end and are joined in close(). Faults follow from the seed and from the orders of the test,
so the same seed gives the same faults.
"""

from __future__ import annotations

import os
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

Address = tuple[str, int]

UP, DOWN = "up", "down"  # Directions: client to server, and server to client.
KINDS = ("cut", "reset", "stall", "drip", "drop")
JOIN_SECONDS = 10.0
_DRIP_PAUSE = 0.0002
_LINGER_RESET = struct.pack("ii", 1, 0)


class Trouble(NamedTuple):
    """A fault of one direction of a link, after its first ``at`` bytes.

    ``kind``: "cut" (both sides see the end of the stream), "reset" (RST to both), "stall"
    (nothing passes for ``amount`` seconds), "drip" (the next ``amount`` bytes pass one by one),
    "drop" (further bytes of this direction are dropped, and the other direction works: half open).
    """

    direction: str
    kind: str
    at: int
    amount: float = 0.0


Plan = Callable[[random.Random], "list[Trouble]"]
Told = Callable[[Trouble], None]


def rough(chance: random.Random) -> list[Trouble]:
    """Return no troubles for one link in four, else one to three within 20,000 bytes."""
    troubles = []
    for _ in range(chance.choice((0, 1, 1, 2, 2, 3, 3, 0))):
        kind = chance.choices(KINDS, (4, 4, 3, 3, 1))[0]
        amount = {"stall": chance.uniform(0.05, 1.5), "drip": chance.randrange(1, 400)}.get(kind, 0)
        at = chance.choice(
            (chance.randrange(40), chance.randrange(2_000), chance.randrange(20_000))
        )
        troubles.append(Trouble(chance.choice((UP, DOWN)), kind, at, amount))
    return troubles


class _Pipe:
    """One direction of a link. Its thread alone reads ``source`` and writes ``target``."""

    def __init__(
        self, link: Link, direction: str, source: socket.socket, target: socket.socket
    ) -> None:
        self.position = 0
        self.troubles: list[Trouble] = []
        self._link = link
        self._direction = direction
        self._source = source
        self._target = target
        self._drip_left = 0
        self._dropping = False
        self.thread = threading.Thread(
            target=self._run, name=f"fault proxy {direction}", daemon=True
        )

    def _run(self) -> None:
        link = self._link
        try:
            while link.wait(self._source, select.POLLIN):
                data = self._source.recv(65536)
                if not data:
                    # Half-closed connections are legal, so the other direction goes on.
                    if link.wait_for_the_other(self):
                        # The time is noted before the end, so that bytes after it are not excused.
                        link.ended_at[self._direction] = time.monotonic()
                        self._target.shutdown(socket.SHUT_WR)
                    return
                self._pass(data)
        except (ConnectionResetError, BrokenPipeError, TimeoutError):
            link.end(reset=True)
        except OSError:
            link.end(reset=False)
        finally:
            link.leave(self)

    def _pass(self, data: bytes) -> None:
        while data and not self._link.ended:
            trouble = min(self.troubles, key=lambda t: t.at, default=None)
            size = len(data)
            if trouble is not None and trouble.at < self.position + size:
                size = max(0, trouble.at - self.position)
            else:
                trouble = None
            piece, data = data[:size], data[size:]
            self.position += size
            if not self._dropping:
                self._send(piece)
            if trouble is not None:
                self.troubles.remove(trouble)
                self._make(trouble)

    def _make(self, trouble: Trouble) -> None:
        link = self._link
        link.tell(trouble)
        if trouble.kind == "cut":
            link.end(reset=False)
        elif trouble.kind == "reset":
            link.end(reset=True)
        elif trouble.kind == "stall":
            link.sleep(trouble.amount)
        elif trouble.kind == "drip":
            self._drip_left += int(trouble.amount)
        elif trouble.kind == "drop":
            self._dropping = True
        else:
            raise ValueError(trouble)

    def _send(self, data: bytes) -> None:
        while data and not self._link.ended:
            dripping = self._drip_left > 0
            if dripping:
                self._drip_left -= 1
                self._link.sleep(_DRIP_PAUSE)
            try:
                sent = self._target.send(data[:1] if dripping else data)
            except BlockingIOError:
                if not self._link.wait(self._target, select.POLLOUT):
                    return
                continue
            data = data[sent:]


class Link:
    """A client's connection, and its connection to the server."""

    def __init__(
        self, proxy: FaultProxy, client: socket.socket, server: socket.socket, told: Told
    ) -> None:
        self.ended = False
        # Monotonic time at which the end of a direction was passed on while the other one ran.
        self.ended_at: dict[str, float] = {}
        self.client: Address = client.getpeername()
        self._proxy = proxy
        self._told = told
        self._sockets = (client, server)
        for sock in self._sockets:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A pipe that is readable after the end of the link, so that every wait ends.
        self._wake, self._waker = os.pipe()
        self._lock = threading.Lock()
        self._reset = False
        self._stalled_until = threading.Event()
        self.pipes = {
            UP: _Pipe(self, UP, client, server),
            DOWN: _Pipe(self, DOWN, server, client),
        }
        self._running = list(self.pipes.values())
        self._half_closed: set[_Pipe] = set()

    def start(self) -> None:
        for pipe in list(self.pipes.values()):
            pipe.thread.start()

    def order(self, trouble: Trouble) -> None:
        """Schedule a trouble ``at`` bytes from now."""
        pipe = self.pipes[trouble.direction]
        pipe.troubles = [*pipe.troubles, trouble._replace(at=pipe.position + trouble.at)]

    def end(self, reset: bool = False) -> None:
        """End both directions at once, by RST or by a normal close. Any thread may call."""
        with self._lock:
            if self.ended:
                return
            self.ended = True
            self._reset = reset
            os.write(self._waker, b"x")
        self._stalled_until.set()

    def end_sending(self) -> None:
        """End the stream to the client. Its own bytes still pass. Any thread may call."""
        self._sockets[0].shutdown(socket.SHUT_WR)

    def tell(self, trouble: Trouble) -> None:
        self._told(trouble)

    # -- called by the pipes ---------------------------------------------------------------

    def wait(self, sock: socket.socket, event: int) -> bool:
        """Wait until the socket is ready. Return False if the link has ended."""
        poll = select.poll()
        poll.register(sock, event)
        poll.register(self._wake, select.POLLIN)
        poll.poll()
        return not self.ended

    def sleep(self, seconds: float) -> None:
        self._stalled_until.wait(seconds)

    def wait_for_the_other(self, pipe: _Pipe) -> bool:
        """Return True if the other direction still runs, so that only this one is closed."""
        with self._lock:
            self._half_closed.add(pipe)
            both = len(self._half_closed) == len(self.pipes)
        if both:
            self.end()
        return not both

    def leave(self, pipe: _Pipe) -> None:
        """Note the end of a pipe. After the last one close the sockets."""
        with self._lock:
            self._running.remove(pipe)
            last = not self._running
        if not last:
            if pipe not in self._half_closed:
                self.end(self._reset)
            return
        for sock in self._sockets:
            try:
                if self._reset:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
            finally:
                sock.close()
        with self._lock:
            self.ended = True
        os.close(self._wake)
        os.close(self._waker)
        self._proxy.forget(self)


class FaultProxy:
    """A listener on a port that the kernel chooses, which connects each client to ``target``.

    ``plan`` returns the troubles of a link. Its argument is a random generator that follows from
    ``seed`` and the number of the link. None: no troubles. The thread of the link calls ``told``
    with each trouble when it happens. Any thread may call the methods.
    """

    def __init__(
        self,
        target: Address,
        *,
        seed: object = 0,
        plan: Plan | None = None,
        told: Told | None = None,
    ) -> None:
        self.target = target
        self.plan = plan
        self.address: Address = ("127.0.0.1", 0)
        self.accepted = 0
        self._seed = seed
        # Ends of all links so far, by the address of the client's end.
        self.ended_at: dict[Address, dict[str, float]] = {}
        self._told: Told = told if told is not None else lambda trouble: None
        self._lock = threading.Lock()
        self._links: list[Link] = []
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._acceptor: threading.Thread | None = None
        self._wake = self._waker = -1
        self.listen()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def text(self) -> str:
        """The address ``host:port`` for clients."""
        return "{}:{}".format(*self.address)

    @property
    def links(self) -> list[Link]:
        """The existing links."""
        with self._lock:
            return list(self._links)

    def listen(self) -> None:
        """Accept connections, at first on a port that the kernel chooses, later on the same."""
        if self._acceptor is not None or self._closed:
            return
        listener = socket.create_server(self.address, backlog=1024)
        listener.setblocking(False)
        self.address = listener.getsockname()
        self._wake, self._waker = os.pipe()
        self._acceptor = threading.Thread(
            target=self._accept, args=(listener, self._wake), name="fault proxy accept", daemon=True
        )
        self._acceptor.start()

    def refuse(self) -> None:
        """Stop listening, so that dials are refused. Existing links go on."""
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            os.write(self._waker, b"x")
            acceptor.join(JOIN_SECONDS)
            os.close(self._wake)
            os.close(self._waker)

    def order(self, trouble: Trouble) -> None:
        """Schedule a trouble on all existing links, ``at`` bytes from now."""
        for link in self.links:
            link.order(trouble)

    def end_links(self, reset: bool = False) -> int:
        """Cut or reset all links now. Return their number."""
        links = self.links
        for link in links:
            link.end(reset)
        return len(links)

    def close(self) -> None:
        """End everything and join the threads. RuntimeError if a thread does not end."""
        self._closed = True
        self.refuse()
        self.end_links()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)
            if thread.is_alive():
                raise RuntimeError(f"{thread.name} does not end")
        self._threads.clear()

    def forget(self, link: Link) -> None:
        with self._lock:
            self._links.remove(link)

    def _accept(self, listener: socket.socket, wake: int) -> None:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(wake, select.POLLIN)
        with listener:
            while True:
                ready = dict(poll.poll())
                if wake in ready:
                    return
                try:
                    client, _ = listener.accept()
                except (BlockingIOError, ConnectionAbortedError):
                    continue
                self._begin(client)

    def _begin(self, client: socket.socket) -> None:
        number, self.accepted = self.accepted, self.accepted + 1
        try:
            server = socket.create_connection(self.target, timeout=JOIN_SECONDS)
        except OSError:
            # After an accept, a reset comes closest to a refused dial.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
            client.close()
            return
        link = Link(self, client, server, self._told)
        plan = self.plan
        if plan is not None:
            for trouble in plan(random.Random(f"{self._seed}:{number}")):
                link.order(trouble)
        with self._lock:
            self.ended_at[link.client] = link.ended_at
            self._links.append(link)
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._threads += [pipe.thread for pipe in link.pipes.values()]
            link.start()
