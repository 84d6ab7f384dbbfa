"""The process in which histories run: its clocks, its chance and its HTTP belong to the simulation.

``install()`` comes before the first import of gnsqsync. ``enter()`` makes a scheduler and a network
the ones that count; a process enters once, since each history has a process of its own.
"""

from __future__ import annotations

import gc
import io
import os
import random
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tests.simulation import points

if TYPE_CHECKING:
    from tests.simulation.network import Network, SimSocket
    from tests.simulation.scheduler import Scheduler

__all__ = ["enter", "install", "real_monotonic", "restart_fixed"]

real_monotonic = time.monotonic
_real_wall = time.time
_real_getpid = os.getpid
_Random = random.Random


class _World:
    scheduler: Scheduler | None = None
    network: Network | None = None
    # Of the process that runs the history; a fork has another one.
    pid = 0
    # Where os.urandom and Random() without a seed get theirs.
    chance = _Random(0)


def restart_fixed() -> None:
    """Run this program anew with a fixed seed of hashes, when it has none."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        environment = {**os.environ, "PYTHONHASHSEED": "0", "TZ": "UTC"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    time.tzset()


def install(changes: Iterable[points.Change] = ()) -> None:
    assert "gnsqsync.runtime" not in sys.modules, "gnsqsync was imported before the simulation"
    time.monotonic = _monotonic
    time.perf_counter = _monotonic
    time.time = _wall
    time.time_ns = lambda: int(_wall() * 1e9)
    time.monotonic_ns = lambda: int(_monotonic() * 1e9)
    time.sleep = _no_sleep
    random.Random = _SeededRandom  # type: ignore[misc]
    os.urandom = lambda size: _World.chance.randbytes(size)
    os.getpid = lambda: 4242 if _real_getpid() == _World.pid else 4243
    points.install(changes)
    _install_http()


def enter(scheduler: Scheduler, network: Network, seed: str) -> None:
    _World.scheduler = scheduler
    points.use(scheduler.strikes, scheduler.interrupt)
    _World.network = network
    _World.pid = _real_getpid()
    _World.chance = _Random(f"chance {seed}")
    random.seed(f"module {seed}")
    # Collected where the history says so.
    gc.disable()


def _monotonic() -> float:
    scheduler = _World.scheduler
    return real_monotonic() if scheduler is None else scheduler.monotonic()


def _wall() -> float:
    scheduler = _World.scheduler
    return _real_wall() if scheduler is None else scheduler.wall()


def _no_sleep(seconds: float) -> None:
    raise AssertionError("somebody sleeps past the simulation")


class _SeededRandom(_Random):
    def __init__(self, x: Any = None) -> None:
        super().__init__(_World.chance.random() if x is None else x)


# -- HTTP -----------------------------------------------------------------------------------------


class _File(io.RawIOBase):
    """What a response reads from."""

    def __init__(self, sock: SimHTTPSocket) -> None:
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._sock.recv_into(buffer)


class SimHTTPSocket:
    """What urllib3 and http.client ask of a socket."""

    def __init__(self, sock: SimSocket) -> None:
        self._sock = sock
        self._timeout: float | None = None

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def gettimeout(self) -> float | None:
        return self._timeout

    def setsockopt(self, *args: Any) -> None:
        """There is nothing to set."""

    def recv_into(self, buffer: Any) -> int:
        self._sock.set_read_timeout(self._timeout)
        data = self._sock.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._sock.send(view) :]
            if view and not self._sock.wait_writable(self._timeout):
                raise TimeoutError("timed out")

    def makefile(self, mode: str, *args: Any) -> Any:
        return io.BufferedReader(_File(self))

    def shutdown(self, how: int = 2) -> None:
        self._sock.shutdown()

    def close(self) -> None:
        self._sock.close()

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def has_something(self) -> bool:
        end = self._sock.end
        return bool(end.received or end.has_eof or end.is_reset)


def _install_http() -> None:
    import urllib3.util.wait

    from gnsqsync.addresses import Address
    from gnsqsync.runtime import call

    class SimCall(call.Call):
        """The dial and the cut of a request, on the simulated network."""

        def __init__(self) -> None:
            assert _World.network is not None
            super().__init__()
            self._sim_cutter = _World.network.cutter()
            self._sockets: list[SimHTTPSocket] = []

        def connect(self, address: Address, timeout: float | None) -> Any:
            assert _World.network is not None
            sock = SimHTTPSocket(
                _World.network.connect("client", address, self.left(timeout), self._sim_cutter)
            )
            sock.settimeout(timeout)
            self.hold(sock)
            return sock

        def hold(self, sock: Any) -> None:
            self._sockets.append(sock)
            if self.is_cut:
                self.cut()

        def end(self) -> None:
            self._sockets.clear()

        def cut(self) -> None:
            self.is_cut = True
            self._sim_cutter.cut()
            for sock in self._sockets:
                sock.shutdown()

    call.Call = SimCall  # type: ignore[misc]
    urllib3.util.wait.wait_for_socket = lambda sock, *args, **options: sock.has_something
