"""What every runner shares: the order it is given, the meter, and the one line of JSON it prints.

Standard library only: runners are started as scripts, most of them in a peer's own environment.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Order:
    """One cell: what to do, how often, on which nsqd. ``warmup`` messages come first, unmeasured.

    ``flavour`` is the runner's own matter (the runtime of ours, the kind of floor).
    """

    kind: str
    address: str
    topic: str
    channel: str
    messages: int
    warmup: int
    body_size: int
    callers: int
    batch: int
    max_in_flight: int
    flavour: str
    cpu: int | None
    server_pid: int

    @property
    def body(self) -> bytes:
        return b"x" * self.body_size

    @property
    def host_port(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)


def server_seconds(pid: int) -> float | None:
    """CPU seconds that all threads of a process have used, or None where the kernel hides it."""
    total = 0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return total / 1e9


class Meter:
    """Wall time and CPU of this process (and of nsqd) between ``start`` and ``stop``.

    nsqd is read outside of the client's marks, so that reading it costs the client nothing.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        self._started: tuple[float, float, float] | None = None
        self._stopped: tuple[float, float, float] | None = None
        self._server: list[float | None] = []

    def start(self) -> None:
        self._server.append(server_seconds(self._order.server_pid))
        self._started = self._now()

    def stop(self) -> None:
        self._stopped = self._now()
        self._server.append(server_seconds(self._order.server_pid))

    @property
    def stopped(self) -> bool:
        return self._stopped is not None

    def reached(self, count: int) -> int:
        """For consumers: call it at message number ``order.warmup`` and at the one it returns.

        The first call starts the meter, the second one stops it and returns -1, which no count
        of messages ever equals.
        """
        if self._started is None:
            self.start()
            return count + self._order.messages
        self.stop()
        return -1

    def result(self) -> dict[str, Any]:
        if self._started is None or self._stopped is None:
            raise RuntimeError("the runner ended without measuring")
        wall, user, system = (b - a for a, b in zip(self._started, self._stopped, strict=True))
        before, after = self._server
        return {
            "messages": self._order.messages,
            "wall": wall,
            "user": user,
            "system": system,
            "server": None if before is None or after is None else after - before,
        }

    @staticmethod
    def _now() -> tuple[float, float, float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return time.perf_counter(), usage.ru_utime, usage.ru_stime


def one_by_one(order: Order, meter: Meter, publish: Callable[[], object]) -> None:
    """``publish`` from this thread only; each call publishes ``order.batch`` messages."""
    for _ in range(order.warmup // order.batch):
        publish()
    meter.start()
    for _ in range(order.messages // order.batch):
        publish()
    meter.stop()


def in_threads(order: Order, meter: Meter, publish: Callable[[], object]) -> None:
    """``publish`` from ``order.callers`` threads; the meter starts when all are warm."""
    start = threading.Barrier(order.callers, action=meter.start)
    stop = threading.Barrier(order.callers, action=meter.stop)
    errors: list[BaseException] = []

    def caller() -> None:
        try:
            for _ in range(order.warmup // order.callers):
                publish()
            start.wait()
            for _ in range(order.messages // order.callers):
                publish()
            stop.wait()
        except BaseException as error:
            errors.append(error)
            start.abort()
            stop.abort()

    threads = [threading.Thread(target=caller, daemon=True) for _ in range(order.callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def main(
    kinds: Mapping[str, Callable[[Order, Meter], object]], distributions: Sequence[str] = ()
) -> None:
    """Run the order given as JSON in the first argument and print the result as one JSON line."""
    order = Order(**json.loads(sys.argv[1]))
    if order.cpu is not None:
        os.sched_setaffinity(0, {order.cpu})
    meter = Meter(order)
    kinds[order.kind](order, meter)
    result = meter.result()
    result["max_rss_kib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result["python"] = platform.python_version()
    result["versions"] = {name: importlib.metadata.version(name) for name in distributions}
    print(json.dumps(result), flush=True)
