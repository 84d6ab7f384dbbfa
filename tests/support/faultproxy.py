"""A TCP proxy that hurts what passes: cuts at a byte, stalls, drips, drops one direction, resets.

Knows bytes and their positions, not what they mean; never reorders and never changes one. Plain
threads, each of which ends and is joined in close(). What happens follows from the seed and from
what the test orders; nothing here is random by itself.
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

UP, DOWN = "up", "down"  # from the client to the server, and back
KINDS = ("cut", "reset", "stall", "drip", "drop")
JOIN_SECONDS = 10.0
_DRIP_PAUSE = 0.0002
_LINGER_RESET = struct.pack("ii", 1, 0)


class Trouble(NamedTuple):
    """What happens to one direction of a link when so many bytes of it have passed.

    ``kind``: "cut" (both sides see the end of the stream), "reset" (RST to both), "stall"
    (nothing passes for ``amount`` seconds), "drip" (the next ``amount`` bytes come one by one),
    "drop" (from here on this direction is swallowed, the other one works: half open).
    """

    direction: str
    kind: str
    at: int
    amount: float = 0.0


Plan = Callable[[random.Random], "list[Trouble]"]
Told = Callable[[Trouble], None]


def rough(chance: random.Random) -> list[Trouble]:
    """One link in four is left alone; the others get one to three troubles within 20,000 bytes."""
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
                    # The other direction goes on: half closed connections are legal.
                    if link.wait_for_the_other(self):
                        # Before it: who looks for what came behind may excuse nothing.
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
    """A client's connection and the one to the server that belongs to it."""

    def __init__(
        self, proxy: FaultProxy, client: socket.socket, server: socket.socket, told: Told
    ) -> None:
        self.ended = False
        # When the end of a direction was passed on, by time.monotonic(), while the other one ran.
        self.ended_at: dict[str, float] = {}
        self.client: Address = client.getpeername()
        self._proxy = proxy
        self._told = told
        self._sockets = (client, server)
        for sock in self._sockets:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Readable from the end of the link on, so that every wait ends.
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
        """Have it happen ``at`` bytes from now."""
        pipe = self.pipes[trouble.direction]
        pipe.troubles = [*pipe.troubles, trouble._replace(at=pipe.position + trouble.at)]

    def end(self, reset: bool = False) -> None:
        """End both directions at once, by RST or as a close would. From any thread."""
        with self._lock:
            if self.ended:
                return
            self.ended = True
            self._reset = reset
            os.write(self._waker, b"x")
        self._stalled_until.set()

    def end_sending(self) -> None:
        """The client sees the end of the stream; what it sends still passes. From any thread."""
        self._sockets[0].shutdown(socket.SHUT_WR)

    def tell(self, trouble: Trouble) -> None:
        self._told(trouble)

    # -- for the pipes ---------------------------------------------------------------------

    def wait(self, sock: socket.socket, event: int) -> bool:
        """Until the socket is ready; False when the link has ended."""
        poll = select.poll()
        poll.register(sock, event)
        poll.register(self._wake, select.POLLIN)
        poll.poll()
        return not self.ended

    def sleep(self, seconds: float) -> None:
        self._stalled_until.wait(seconds)

    def wait_for_the_other(self, pipe: _Pipe) -> bool:
        """Whether the other direction still runs, so that this one may be closed alone."""
        with self._lock:
            self._half_closed.add(pipe)
            both = len(self._half_closed) == len(self.pipes)
        if both:
            self.end()
        return not both

    def leave(self, pipe: _Pipe) -> None:
        """A pipe ended; the last one closes the sockets, so that no thread waits on them."""
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
    """Listens on a port of the kernel's choice and connects each client to ``target``.

    ``plan`` says what happens to each link; it is asked with a source of chance that follows from
    ``seed`` and the number of the link. None: nothing happens. ``told`` is called with each trouble
    when it happens, by the thread of the link. Safe from any thread.
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
        # Of all links so far, by the address of the client's end.
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
        """``host:port`` to give to a client."""
        return "{}:{}".format(*self.address)

    @property
    def links(self) -> list[Link]:
        """The links that live."""
        with self._lock:
            return list(self._links)

    def listen(self) -> None:
        """Accept connections: at first on a port of the kernel's choice, later on the same."""
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
        """Listen no more: who dials is refused. Links that live go on."""
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            os.write(self._waker, b"x")
            acceptor.join(JOIN_SECONDS)
            os.close(self._wake)
            os.close(self._waker)

    def order(self, trouble: Trouble) -> None:
        """Have it happen to all links that live, ``at`` bytes from now."""
        for link in self.links:
            link.order(trouble)

    def end_links(self, reset: bool = False) -> int:
        """Cut or reset all links now; how many."""
        links = self.links
        for link in links:
            link.end(reset)
        return len(links)

    def close(self) -> None:
        """End everything and join the threads; RuntimeError when one does not end."""
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
            # As near to "refused" as it gets behind an accept.
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
