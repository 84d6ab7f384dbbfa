"""The runtime of native threads, locks and sockets.

Takes each of them as Python made it, so that it also works where gevent patched sockets only.
Knows nothing of what runs in the threads.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import queue
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from gnsqsync.addresses import Address
from gnsqsync.runtime import base, dial, world

__all__ = ["ThreadRuntime"]

logger = logging.getLogger("gnsqsync.runtime")

# MSG_NOSIGNAL: an application may have set SIGPIPE back to its deadly default.
_SEND_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)
_TIMEVAL = struct.Struct("@ll")


class ThreadRuntime(base.Runtime):
    """Threads; every object may be used from any thread."""

    name = "threads"

    def __init__(self) -> None:
        self._new_lock = world.native("threading", "Lock")
        self._new_queue = world.native("queue", "SimpleQueue")
        new_socket = world.native("socket", "socket")
        getaddrinfo = world.native("socket", "getaddrinfo")

        def look_up(host: str, port: int, timeout: float) -> list[Any]:
            # The C library's look-up cannot be given a limit; what it takes is taken off the
            # time for connecting.
            found: list[Any] = getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return found

        self._net = dial.Net(new_socket, look_up)

    def spawn(self, name: str, fn: Callable[..., object], *args: Any) -> base.Task:
        world.check()
        thread = threading.Thread(target=_run, args=(fn, args), name=name, daemon=True)
        thread.start()
        return _Task(thread)

    def current(self) -> int:
        return threading.get_ident()

    def lock(self) -> base.Lock:
        lock: base.Lock = self._new_lock()
        return lock

    baton = lock

    def event(self) -> base.Event:
        return _Event(self._new_lock)

    def latch(self) -> base.Latch:
        return _Latch(self._new_lock)

    def gather(self) -> None:
        return  # all run as it is

    def queue(self) -> base.Queue:
        return _Queue(self._new_queue())

    def timed_queue(self) -> base.TimedQueue:
        return _TimedQueue(self._new_lock)

    def cutter(self) -> dial.Cutter:
        return dial.Cutter(self._new_lock(), _wake_dial)

    def connect(
        self,
        address: Address,
        timeout: float,
        local: Address | None = None,
        cutter: base.Cutter | None = None,
    ) -> base.Socket:
        assert cutter is None or isinstance(cutter, dial.Cutter)
        sock = dial.connect(self._net, address, timeout, local, cutter)
        return _Socket(sock, dial.peer_of(sock, address))

    def listen(self, address: Address, backlog: int = 128) -> base.Listener:
        return _Listener(dial.listen(self._net, address, backlog), self._new_lock())

    def call_blocking(self, fn: Callable[..., Any], *args: Any) -> Any:
        return fn(*args)


def _wake_dial(sock: Any) -> None:
    """Linux then ends the wait in connect(); elsewhere it may last until its time is over."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # not connected: who waits is woken all the same


def _run(fn: Callable[..., object], args: tuple[Any, ...]) -> None:
    try:
        fn(*args)
    except SystemExit:
        pass  # as threading does: it ends this thread only
    except BaseException:
        logger.exception("%s ended by an unexpected exception", threading.current_thread().name)


class _Task:
    __slots__ = ("_thread", "name")

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread
        self.name = thread.name

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        # The number of an ended thread is given to new ones.
        return self._thread.ident == threading.get_ident() and self._thread.is_alive()

    def join(self, timeout: float | None = None) -> bool:
        if self.is_current:
            return False
        self._thread.join(None if timeout is None else max(timeout, 0.0))
        return not self._thread.is_alive()

    def __repr__(self) -> str:
        return f"<thread {self.name}{'' if self.alive else ' ended'}>"


class _Event:
    """Not threading.Event: its set() hangs in a signal handler that interrupts its own wait(),
    and Reader.stop() is called by signal handlers."""

    __slots__ = ("_flag", "_waiters")

    def __init__(self, new_lock: Callable[[], Any]) -> None:
        self._flag = False
        self._waiters = _Waiters(new_lock)

    def set(self) -> None:
        self._flag = True
        self._waiters.wake()

    def clear(self) -> None:
        self._flag = False

    def is_set(self) -> bool:
        return self._flag

    def wait(self, timeout: float | None = None) -> bool:
        return self._flag or self._waiters.wait(self.is_set, timeout)


class _Queue:
    """A SimpleQueue: its put() is reentrant, so signal handlers may use it."""

    __slots__ = ("_get_nowait", "empty", "get", "put")

    def __init__(self, inner: queue.SimpleQueue[Any]) -> None:
        self.put: Callable[[Any], None] = inner.put
        self.empty = inner.empty
        self.get: Callable[[], Any] = inner.get
        self._get_nowait = inner.get_nowait

    def get_nowait(self) -> Any:
        try:
            return self._get_nowait()
        except queue.Empty:
            raise TimeoutError("nothing in the queue") from None


class _TimedQueue:
    """Not a SimpleQueue: before CPython 3.13 its get(timeout) waits for ever when it looks at the
    clock too late, because the thread was not scheduled or a signal handler ran meanwhile."""

    __slots__ = ("_items", "_waiters")

    def __init__(self, new_lock: Callable[[], Any]) -> None:
        self._items: deque[Any] = deque()
        self._waiters = _Waiters(new_lock)

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._waiters.wake()

    def empty(self) -> bool:
        return not self._items

    def get_nowait(self) -> Any:
        try:
            return self._items.popleft()
        except IndexError:
            raise TimeoutError("nothing in the queue") from None

    def get(self, timeout: float | None = None) -> Any:
        deadline = None if timeout is None else base.Runtime.now() + timeout
        while True:
            try:
                return self._items.popleft()
            except IndexError:
                pass
            left = None if deadline is None else deadline - base.Runtime.now()
            if left is not None and left <= 0:
                raise TimeoutError(f"nothing in the queue for {timeout:g} seconds")
            self._waiters.wait(self._items.__len__, left)


class _Waiters:
    """Each waiter brings a lock, and ``wake()`` opens them all."""

    __slots__ = ("_locks", "_new_lock")

    def __init__(self, new_lock: Callable[[], Any]) -> None:
        self._new_lock = new_lock
        self._locks: list[Any] = []

    def wake(self) -> None:
        for lock in list(self._locks):
            try:
                lock.release()
            except RuntimeError:
                pass  # opened by another wake(), its owner has not run yet

    def wait(self, due: Callable[[], object], timeout: float | None) -> bool:
        """Whether it was woken within ``timeout`` seconds, or ``due()`` already."""
        lock = self._new_lock()
        lock.acquire()
        self._locks.append(lock)
        try:
            # Asked after appending: a wake() before it has missed us.
            if due():
                return True
            woken: bool = lock.acquire(True, -1 if timeout is None else max(timeout, 0.0))
            return woken
        finally:
            self._locks.remove(lock)


class _Latch:
    """A bare lock, taken at creation: a twentieth of the price of an Event."""

    __slots__ = ("_lock", "released")

    def __init__(self, new_lock: Callable[[], Any]) -> None:
        self._lock = new_lock()
        self._lock.acquire()
        self.released = False

    def release(self) -> None:
        self.released = True
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it was open: two released it, or a waiter passed it on

    def wait(self, timeout: float | None = None) -> bool:
        if self.released:
            return True
        if not self._lock.acquire(True, -1 if timeout is None else max(timeout, 0.0)):
            return self.released
        self.release()  # for the next waiter
        return True


class _Socket:
    """A blocking socket; the read timeout is the kernel's, so that sends know nothing of it."""

    __slots__ = ("_read_timeout", "_recv", "_sock", "local", "peer")

    def __init__(self, sock: Any, peer: str) -> None:
        self._sock = sock
        self._recv = sock.recv
        self._read_timeout: float | None = None
        self.peer = peer
        self.local = dial.name_of(sock.family, sock.getsockname())

    def recv(self, size: int) -> bytes:
        try:
            data: bytes = self._sock.recv(size)
        except BlockingIOError:
            raise TimeoutError(
                f"nothing from {self.peer} for {self._read_timeout:g} seconds"
            ) from None
        return data

    def receive(self, chunks: deque[bytes], size: int) -> None:
        try:
            # From the system call into ``chunks`` all is C: no place where an interrupt is raised.
            chunks.extend(map(self._recv, (size,)))
        except BlockingIOError:
            raise TimeoutError(
                f"nothing from {self.peer} for {self._read_timeout:g} seconds"
            ) from None

    def send(self, data: bytes | memoryview) -> int:
        try:
            sent: int = self._sock.send(data, _SEND_FLAGS)
        except BlockingIOError:
            return 0
        return sent

    def wait_writable(self, timeout: float | None) -> bool:
        return _wait(self._sock, select.POLLOUT, timeout)

    def set_read_timeout(self, seconds: float | None) -> None:
        if seconds is None:
            whole, micros = 0, 0  # which the kernel reads as "for ever"
        else:
            whole, micros = divmod(max(math.ceil(seconds * 1e6), 1), 1_000_000)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(whole, micros))
        self._read_timeout = seconds

    def end_sending(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # closed or reset before: the peer waits for nothing

    def shutdown(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # closed or reset before: nobody waits in recv() then

    def close(self) -> None:
        self._sock.close()

    abandon = close

    def fileno(self) -> int:
        descriptor: int = self._sock.fileno()
        return descriptor

    def __repr__(self) -> str:
        return f"<socket {self.local} to {self.peer}>"


class _Listener:
    def __init__(self, sock: Any, accepting: base.Lock) -> None:
        self._sock = sock
        # Held while accept() waits: close() may not free a descriptor number in use.
        self._accepting = accepting
        self._closed = False
        # Not blocking, because a connection can vanish between poll() and accept().
        sock.setblocking(False)
        self.address = dial.address_of(sock.family, sock.getsockname())

    def accept(self, timeout: float | None = None) -> base.Socket:
        deadline = None if timeout is None else base.Runtime.now() + timeout
        while True:
            left = None if deadline is None else deadline - base.Runtime.now()
            with self._accepting:
                # Once closed the descriptor is -1, which _wait() refuses.
                if not _wait(self._sock, select.POLLIN, left):
                    raise TimeoutError(f"no connection to {self.address} for {timeout:g} seconds")
                try:
                    accepted, _ = self._sock.accept()
                except (BlockingIOError, ConnectionAbortedError):
                    continue
            native = type(self._sock)
            if type(accepted) is not native:  # gevent's, where only sockets are patched
                accepted = native(self._sock.family, socket.SOCK_STREAM, 0, accepted.detach())
            accepted.setblocking(True)
            if accepted.family != socket.AF_UNIX:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return _Socket(accepted, dial.peer_of(accepted))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes accept()
        except OSError:
            pass
        with self._accepting:
            self._sock.close()
        if self.address.path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address.path)


def _wait(sock: Any, condition: int, timeout: float | None) -> bool:
    """Whether ``sock`` is ready, broken or shut down before ``timeout`` seconds are over."""
    descriptor = sock.fileno()
    if descriptor < 0:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    poll = world.native("select", "poll")()
    poll.register(descriptor, condition)
    milliseconds = None
    if timeout is not None:
        milliseconds = min(max(math.ceil(timeout * 1000), 0), 2**31 - 1)
    return bool(poll.poll(milliseconds))
