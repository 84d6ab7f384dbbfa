"""Runtime of gevent: greenlets, gevent's locks and sockets, in a patched process or not.

Must not know what runs in the greenlets. Only ``choose()`` imports it, so that a process without
gevent does not load gevent.

Surprise: all objects belong to the OS thread that made the runtime. Another thread may append,
release or send, but must not make or wait.
"""

from __future__ import annotations

import logging
import socket
import sys
import traceback
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import gevent
import gevent.event
import gevent.lock
import gevent.monkey
import gevent.queue
import gevent.socket

from gnsqsync.addresses import Address
from gnsqsync.errors import ConfigError
from gnsqsync.runtime import base, dial, world
from gnsqsync.runtime.greenlet_sockets import GreenletSocket
from gnsqsync.runtime.mutex import new_mutex
from gnsqsync.runtime.rough_latch import Clock, RoughLatch

__all__ = ["GreenletRuntime"]

logger: logging.Logger = logging.getLogger("gnsqsync.runtime")


class GreenletRuntime(base.Runtime):
    """Greenlets in the hub of the OS thread that made the runtime.

    Its objects belong to that thread. Another OS thread (a native pool, a thread in an unpatched
    process) that makes an object gets ConfigError; give each such thread a Reader or Writer of its
    own. Calls that only append, release or send without a wait work from there.
    """

    name = "gevent"
    # A greenlet runs until it waits.
    gathers = True
    # Greenlets, locks and sockets belong to the thread of their hub.
    has_home_thread = True

    def __init__(self) -> None:
        self._get_ident: Callable[[], int] = world.native("_thread", "get_ident")
        self._home = self._get_ident()
        self._sockets_patched = world.check().socket
        self._clock = Clock(self._home, self._get_ident)
        self._net = dial.Net(gevent.socket.socket, _look_up)
        self._tasks: weakref.WeakSet[gevent.Greenlet] = weakref.WeakSet()
        self.on_fork(self._in_child)

    @property
    def kin(self) -> Hashable:
        self.check_thread()
        hub: Hashable = gevent.get_hub()
        return hub

    def check_thread(self) -> None:
        if self._get_ident() != self._home:
            raise ConfigError(
                "a Reader or Writer on gevent belongs to the OS thread that used it first, and this"
                " is another OS thread; give each OS thread a Reader or Writer of its own"
            )

    def _in_child(self) -> None:
        """End the greenlets that the fork has copied, as a fork ends threads.

        They end with GreenletExit when the child's hub first runs. The greenlet that forked lives
        on.
        """
        if not gevent.monkey.is_object_patched("os", "fork"):
            gevent.reinit()  # the event loop still shares its epoll with the parent
        running = gevent.getcurrent()
        for greenlet in list(self._tasks):
            if greenlet is not running:
                greenlet.kill(block=False)

    def spawn(self, name: str, fn: Callable[..., object], *args: Any) -> base.Task:
        world.check()
        self.check_thread()
        greenlet = gevent.Greenlet(_run, self, name, fn, args)
        greenlet.name = name
        self._tasks.add(greenlet)
        greenlet.start()
        return _Task(greenlet, name, self._home)

    def current(self) -> int:
        return id(gevent.getcurrent())

    def lock(self) -> base.Lock:
        self.check_thread()
        return _Lock()

    def mutex(self) -> base.Mutex:
        return new_mutex()

    def event(self) -> base.Event:
        self.check_thread()
        event: base.Event = gevent.event.Event()
        return event

    def latch(self) -> base.Latch:
        self.check_thread()
        return _Latch()

    def rough_latch(self) -> base.Latch:
        # The thread is not checked: a publish makes this latch, and was checked before.
        return RoughLatch(self._clock)

    def gather(self) -> None:
        # Does what gevent.sleep(0) does, but cheaper: all ready greenlets run before this one.
        hub = gevent.get_hub()
        callback = hub.loop.run_callback(gevent.getcurrent().switch)
        try:
            hub.switch()
        finally:
            # If an exception was thrown in, the callback must not switch here a second time.
            callback.stop()

    def queue(self) -> base.Queue:
        self.check_thread()
        return _Queue()

    def timed_queue(self) -> base.TimedQueue:
        self.check_thread()
        return _Queue()

    def cutter(self) -> dial.Cutter:
        return dial.Cutter(_Lock(), self._wake_dial)

    def _wake_dial(self, sock: Any) -> None:
        """Wake the greenlet in connect() by a close. Only the hub's thread may do that."""
        if self._get_ident() == self._home:
            sock.close()

    def connect(
        self,
        address: Address,
        timeout: float,
        local: Address | None = None,
        cutter: base.Cutter | None = None,
    ) -> base.Socket:
        self.check_thread()
        assert cutter is None or isinstance(cutter, dial.Cutter)
        sock = dial.connect(self._net, address, timeout, local, cutter)
        return GreenletSocket(sock, dial.peer_of(sock, address))

    def call_blocking(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Call ``fn`` here if sockets are patched, as it then switches itself. Otherwise call it in
        gevent's pool of native threads, so that other greenlets run meanwhile."""
        self.check_thread()
        if self._sockets_patched:
            return fn(*args)
        result, error = gevent.get_hub().threadpool.apply(_captured, (fn, args))
        if error is not None:
            raise error
        return result

    def time_limit(
        self, seconds: float, interrupt: type[BaseException], after: base.After
    ) -> base.Limit:
        def limit(fn: Callable[[Any], Any], argument: Any) -> Any:
            # Thrown in where the greenlet waits, so never after the end of the block.
            with gevent.Timeout(seconds, interrupt):
                return fn(argument)

        return limit


def _captured(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
    """Return the result and the error of a call: gevent's pool would print an error it sees."""
    try:
        return fn(*args), None
    except BaseException as error:  # noqa: BLE001 - the caller raises it
        return None, error


def _look_up(host: str, port: int, timeout: float) -> list[Any]:
    with gevent.Timeout(timeout, TimeoutError(f"no address for {host} in {timeout:g} seconds")):
        found: list[Any] = gevent.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return found


def _run(
    runtime: GreenletRuntime, name: str, fn: Callable[..., object], args: tuple[Any, ...]
) -> None:
    # The argument ``runtime`` keeps it alive, with its hook for forks, while a task runs.
    try:
        fn(*args)
    except (gevent.GreenletExit, KeyboardInterrupt, SystemExit):
        raise  # gevent hands the last two to the main greenlet, where Ctrl-C belongs
    except BaseException:  # the task ends here, so nothing else would report it
        logger.exception("%s ended by an unexpected exception", name)


class _Task:
    __slots__ = ("_greenlet", "_home", "name")

    def __init__(self, greenlet: gevent.Greenlet, name: str, home: int) -> None:
        self._greenlet = greenlet
        self._home = home
        self.name = name

    @property
    def alive(self) -> bool:
        return not self._greenlet.ready()

    @property
    def is_current(self) -> bool:
        return self._greenlet is gevent.getcurrent()

    def join(self, timeout: float | None = None) -> bool:
        if self.is_current:
            return False
        self._greenlet.join(None if timeout is None else max(timeout, 0.0))
        return not self.alive

    def stack(self) -> str:
        if not self.alive:
            return ""
        # A running greenlet has no frame of its own; its thread's frame is its.
        frame = self._greenlet.gr_frame or sys._current_frames().get(self._home)
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def __repr__(self) -> str:
        return f"<greenlet {self.name}{'' if self.alive else ' ended'}>"


class _Lock(gevent.lock.BoundedSemaphore):  # type: ignore[misc]
    """A lock. gevent.thread.LockType is no choice: its failed try-lock switches greenlets."""

    _OVER_RELEASE_ERROR = RuntimeError


class _Queue:
    __slots__ = ("_get", "empty", "put")

    def __init__(self) -> None:
        # gevent.queue.SimpleQueue is no choice: in some versions it is the standard library's,
        # whose get() stops all greenlets.
        inner = gevent.queue.Queue()
        self.put: Callable[[Any], None] = inner.put
        self.empty: Callable[[], bool] = inner.empty
        self._get = inner.get

    def get(self, timeout: float | None = None) -> Any:
        if timeout is None:
            return self._get()
        try:
            return self._get(True, max(timeout, 0.0))
        except gevent.queue.Empty:
            raise TimeoutError(f"nothing in the queue for {timeout:g} seconds") from None

    def get_nowait(self) -> Any:
        return self.get(0.0)


class _Latch(gevent.event.Event):  # type: ignore[misc]
    def release(self) -> None:
        self.set()

    @property
    def released(self) -> bool:
        is_set: bool = self.is_set()
        return is_set
