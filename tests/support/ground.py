"""Ground of scripted servers: sockets and threads of the machine, or a simulated network.

``current()`` is the ground of the running test. Knows nothing of NSQ, and nothing of gnsqsync.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tests.support.ports import HeldPorts

__all__ = [
    "Condition",
    "Event",
    "Ground",
    "Listener",
    "Lock",
    "Thread",
    "black_hole",
    "current",
    "entered",
    "silent",
    "unused",
]

# Seconds between two looks of a thread that accepts: whether it should end.
_LOOK_SECONDS = 0.02


class Thread(Protocol):
    """A thread of a server."""

    name: str

    def join(self, timeout: float | None = None) -> object: ...
    def is_alive(self) -> bool: ...


class Event(Protocol):
    """``threading.Event``, as far as servers use it."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Lock(Protocol):
    """``threading.Lock``, as far as servers use it."""

    def __enter__(self) -> object: ...
    def __exit__(self, *exc: Any) -> object: ...


class Condition(Protocol):
    """``threading.Condition``, as far as servers use it."""

    def __enter__(self) -> object: ...
    def __exit__(self, *exc: Any) -> object: ...
    def notify_all(self) -> None: ...
    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool: ...


class Listener(Protocol):
    """A port of 127.0.0.1. It calls ``accept`` with the socket of each connection."""

    address: tuple[str, int]

    def open(self) -> None:
        """Listen: at first on a port that is free, later on the same port again."""

    def refuse(self) -> None:
        """Listen no more. Nobody else gets the port."""

    def close(self) -> None:
        """Listen no more, and give the port up."""


class Ground(Protocol):
    """The maker of all that a scripted server needs of the machine."""

    def listener(self, accept: Callable[[Any], object]) -> Listener: ...
    def spawn(self, name: str, target: Callable[..., object], *args: Any) -> Thread: ...
    def lock(self) -> Lock: ...
    def condition(self) -> Condition: ...
    def event(self) -> Event: ...

    def unused(self) -> contextlib.AbstractContextManager[tuple[str, int]]:
        """An address where nobody listens, so that a dial is refused."""

    def black_hole(self) -> contextlib.AbstractContextManager[tuple[str, int]]:
        """An address that answers no SYN, so that a dial hangs."""


class _RealListener:
    """A listening socket, and a thread that accepts."""

    def __init__(self, accept: Callable[[Any], object]) -> None:
        self.address: tuple[str, int] = ("127.0.0.1", 0)
        self._take = accept
        self._refusing = threading.Event()
        self._acceptor: threading.Thread | None = None
        self._held = HeldPorts()

    def open(self) -> None:
        listener = socket.create_server(self.address)
        self._held.release()
        listener.settimeout(_LOOK_SECONDS)
        self.address = listener.getsockname()
        self._refusing.clear()
        self._acceptor = threading.Thread(
            target=self._accept, args=(listener,), name="scripted accept", daemon=True
        )
        self._acceptor.start()

    def refuse(self) -> None:
        self._refusing.set()
        if self._acceptor is not None:
            self._acceptor.join()
            self._held.hold(self.address)

    def close(self) -> None:
        self.refuse()
        self._held.release()

    def _accept(self, listener: socket.socket) -> None:
        with listener:
            while not self._refusing.is_set():
                try:
                    sock, _ = listener.accept()
                except TimeoutError:
                    continue
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._take(sock)


class _RealGround:
    """Sockets and threads of the machine."""

    def listener(self, accept: Callable[[Any], object]) -> Listener:
        return _RealListener(accept)

    def spawn(self, name: str, target: Callable[..., object], *args: Any) -> Thread:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        thread.start()
        return thread

    def lock(self) -> Lock:
        return threading.Lock()

    def condition(self) -> Condition:
        return threading.Condition()

    def event(self) -> Event:
        return threading.Event()

    @contextlib.contextmanager
    def unused(self) -> Iterator[tuple[str, int]]:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            yield unused.getsockname()

    @contextlib.contextmanager
    def black_hole(self) -> Iterator[tuple[str, int]]:
        # A listener whose queue is full drops what comes.
        with contextlib.ExitStack() as sockets:
            listener = sockets.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            for _ in range(8):
                filler = sockets.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
            yield listener.getsockname()


_grounds: list[Ground] = [_RealGround()]


def current() -> Ground:
    return _grounds[-1]


def unused() -> contextlib.AbstractContextManager[tuple[str, int]]:
    """An address where nobody listens, on the ground of the running test."""
    return current().unused()


def black_hole() -> contextlib.AbstractContextManager[tuple[str, int]]:
    """An address that answers no SYN, on the ground of the running test."""
    return current().black_hole()


@contextlib.contextmanager
def silent() -> Iterator[tuple[str, int]]:
    """An address that accepts and answers nothing, on the ground of the running test."""
    kept: list[Any] = []
    listener = current().listener(kept.append)
    listener.open()
    try:
        yield listener.address
    finally:
        listener.close()
        for sock in kept:
            sock.close()


@contextlib.contextmanager
def entered(ground: Ground) -> Iterator[None]:
    """Servers that are made inside stand on ``ground``."""
    _grounds.append(ground)
    try:
        yield
    finally:
        _grounds.remove(ground)
