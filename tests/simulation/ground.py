"""The ground of scripted servers in a simulated world: the network, and tasks in place of threads.

Knows scheduler and network; knows nothing of NSQ.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gnsqsync.runtime import base
from tests.simulation.environment import SimHTTPSocket
from tests.simulation.network import End, Network, SimSocket
from tests.simulation.runtime import SimRuntime, Waiters
from tests.simulation.scheduler import Scheduler
from tests.support import ground

__all__ = ["SimGround"]

_HOST = "127.0.0.1"


class ServerSocket(SimHTTPSocket):
    """A connected socket as a scripted server uses it."""

    def __init__(self, end: End) -> None:
        super().__init__(SimSocket(end, end.peer.address))
        self._end = end
        self._lingers = True

    def setsockopt(self, *args: Any) -> None:
        if args[:2] == (socket.SOL_SOCKET, socket.SO_LINGER):
            self._lingers = args[2] != struct.pack("ii", 1, 0)

    def recv(self, size: int) -> bytes:
        self._sock.set_read_timeout(self._timeout)
        return self._sock.recv(size)

    def shutdown(self, how: int = socket.SHUT_RDWR) -> None:
        if how == socket.SHUT_WR:
            self._sock.end_sending()
        elif self._end.is_closed or self._end.is_reset:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        else:
            self._sock.shutdown()

    def close(self) -> None:
        if self._lingers:
            self._end.close()
        else:
            self._end.reset()

    def getpeername(self) -> tuple[str, int]:
        host, _, port = self._end.peer.address.rpartition(":")
        return host, int(port)


class _Listener:
    """A port of the simulated network."""

    def __init__(
        self, network: Network, ports: Iterator[int], accept: Callable[[Any], object]
    ) -> None:
        self.address = (_HOST, 0)
        self._ports = ports
        self._network = network
        self._take = accept

    def open(self) -> None:
        if not self.address[1]:
            self.address = (_HOST, next(self._ports))
        self._network.listeners[self.address] = lambda end: self._take(ServerSocket(end)) and None

    def refuse(self) -> None:
        self._network.listeners.pop(self.address, None)

    def close(self) -> None:
        self.refuse()


class _Thread:
    """A task with the methods of a thread."""

    def __init__(self, task: base.Task) -> None:
        self.name = task.name
        self._task = task

    def join(self, timeout: float | None = None) -> object:
        return self._task.join(timeout)

    def is_alive(self) -> bool:
        return self._task.alive


class _Condition:
    """A condition without a lock: its owners lose the processor only where they wait."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._changed = Waiters(scheduler, "a condition")

    def __enter__(self) -> _Condition:
        return self

    def __exit__(self, *exc: Any) -> None:
        return

    def notify_all(self) -> None:
        self._changed.wake()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        return self._changed.wait(predicate, timeout)


class SimGround:
    """The simulated network and scheduler."""

    def __init__(self, scheduler: Scheduler, network: Network) -> None:
        self._scheduler = scheduler
        self._network = network
        # A test gets the same ports in each run, whichever tests ran before it.
        self._ports = itertools.count(40_000)
        self._runtime = SimRuntime(scheduler, network, _HOST, "server")

    def listener(self, accept: Callable[[Any], object]) -> ground.Listener:
        return _Listener(self._network, self._ports, accept)

    def spawn(self, name: str, target: Callable[..., object], *args: Any) -> ground.Thread:
        return _Thread(self._runtime.spawn(name, target, *args))

    def lock(self) -> ground.Lock:
        return self._runtime.lock()

    def condition(self) -> ground.Condition:
        return _Condition(self._scheduler)

    def event(self) -> ground.Event:
        return self._runtime.event()

    @contextmanager
    def unused(self) -> Iterator[tuple[str, int]]:
        yield _HOST, next(self._ports)

    @contextmanager
    def black_hole(self) -> Iterator[tuple[str, int]]:
        host = f"127.0.0.{len(self._network.off) + 2}"
        self._network.off[host] = None
        yield host, next(self._ports)
