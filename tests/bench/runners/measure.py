"""What every runner shares: the order it is given, the meter, and the one line of JSON it prints.

Standard library only: runners are started as scripts, most of them in a peer's own environment.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import platform
import resource
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Order:
    """One cell: what to do, how often, on which nsqd. ``warmup`` messages come first, unmeasured.

    ``address`` and ``topic`` may be several, with commas between them, for ours.
    ``flavour`` is the runner's own matter (the runtime of ours, the kind of floor). ``seconds`` is
    about how long it should take.
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
    workers: int
    latency: str
    handler_seconds: float
    transport: str
    ca_file: str
    collect: bool
    seconds: float
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


def server_calls(pid: int) -> tuple[int, int] | None:
    """How often a process has called read and write, or None where the kernel hides it."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        counters = {name: int(value) for name, value in (line.split(": ") for line in lines)}
        return counters["syscr"], counters["syscw"]
    except (OSError, ValueError, KeyError):
        return None


def resident_kib() -> int | None:
    """Memory of this process in RAM now, or None where the kernel hides it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * resource.getpagesize() // 1024


class Meter:
    """Wall time and CPU of this process (and of nsqd) between ``start`` and ``stop``.

    nsqd is read outside of the client's marks, so that reading it costs the client nothing; only a
    consumer's first look, about a millisecond, is inside, since it cannot know its message before.
    ``latencies``: microseconds from publish to handler, of all messages in order; ``sent``: when
    each was published, in nanoseconds. ``waits``: seconds that each publish took, a list for each
    caller. ``extra`` is what a runner adds to its result.
    """

    def __init__(self, order: Order) -> None:
        self.latencies: list[int] = []
        self.sent: list[int] = []
        self.waits: list[list[float]] = []
        self.extra: dict[str, Any] = {}
        self._order = order
        # The first message is still being marked while other workers go on.
        self._lock = threading.Lock()
        self._started: tuple[float, float, float] | None = None
        self._stopped: tuple[float, float, float] | None = None
        self._server: list[float | None] = []
        self._calls: list[tuple[int, int] | None] = []
        self._memory: list[int | None] = [resident_kib()]

    def start(self, now: tuple[float, float, float] | None = None) -> None:
        self._memory.append(resident_kib())
        self._look_at_server()
        self._started = now or self._now()

    def stop(self, now: tuple[float, float, float] | None = None) -> None:
        self._stopped = now or self._now()
        self._look_at_server()
        self._memory.append(resident_kib())

    def _look_at_server(self) -> None:
        self._server.append(server_seconds(self._order.server_pid))
        self._calls.append(server_calls(self._order.server_pid))

    @property
    def stopped(self) -> bool:
        return self._stopped is not None

    @property
    def window(self) -> tuple[float, float]:
        """When the meter started and when it stopped, by time.perf_counter()."""
        assert self._started is not None and self._stopped is not None
        return self._started[0], self._stopped[0]

    def mark(self) -> bool:
        """For consumers, at the first and the last measured message: whether it was the last."""
        # Before the first thing that lets other workers run: they take messages meanwhile, with
        # hundreds of threads as many as are measured.
        now = self._now()
        with self._lock:
            if self._started is None:
                self.start(now)
                return False
            self.stop(now)
            return True

    def result(self) -> dict[str, Any]:
        if self._started is None or self._stopped is None:
            raise RuntimeError("the runner ended without measuring")
        wall, user, system = (b - a for a, b in zip(self._started, self._stopped, strict=True))
        before, after = self._server
        imports, at_start, at_stop = self._memory
        result = {
            "messages": self._order.messages,
            "wall": wall,
            "user": user,
            "system": system,
            "server": None if before is None or after is None else after - before,
            "imports_kib": imports,
            "start_kib": at_start,
            "stop_kib": at_stop,
            **self.extra,
        }
        calls, calls_after = self._calls
        if calls is not None and calls_after is not None:
            result["server_reads"] = calls_after[0] - calls[0]
            result["server_writes"] = calls_after[1] - calls[1]
        if self.waits:
            warm = self._order.warmup // self._order.callers
            result["waits"] = [waits[warm:] for waits in self.waits]
        if self.latencies:
            first = self._order.warmup
            last = first + self._order.messages
            result["latencies"] = self.latencies[first:last]
            if self._order.warmup == 0:
                # Everything is measured, so that a change over time shows: milliseconds.
                result["sent"] = [(at - self.sent[0]) / 1e6 for at in self.sent[:last]]
        return result

    def arrived(self, body: bytes) -> None:
        """For handlers of the rows of latency: ``body`` begins with the time of its publish."""
        sent = int.from_bytes(body[:8], "big")
        self.latencies.append((time.time_ns() - sent) // 1000)
        self.sent.append(sent)

    @staticmethod
    def _now() -> tuple[float, float, float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return time.perf_counter(), usage.ru_utime, usage.ru_stime


def counting_handler(
    order: Order, meter: Meter, body_of: Callable[[Any], bytes], on_end: Callable[[], object]
) -> Callable[[Any], None]:
    """A handler of one message that only counts, and in a row of latency takes the time.

    It counts right on several threads, because next() of an iterator in C is atomic.
    """
    marks = max(1, order.warmup), order.warmup + order.messages
    following, arrived = iter(range(1, sys.maxsize)).__next__, meter.arrived

    def handler(message: Any) -> None:
        if following() in marks and meter.mark():
            on_end()

    def timing(message: Any) -> None:
        arrived(body_of(message))
        handler(message)

    return timing if order.kind == "latency" else handler


def timed(order: Order, meter: Meter, publish: Callable[[], object]) -> Callable[[], object]:
    """What one of several callers calls; in a row of waits it takes the time."""
    if order.kind != "waits":
        return publish
    waits: list[float] = []
    meter.waits.append(waits)

    def publish_timed() -> None:
        began = time.perf_counter()
        publish()
        waits.append(time.perf_counter() - began)

    return publish_timed


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

    def caller(publish_one: Callable[[], object]) -> None:
        try:
            for _ in range(order.warmup // order.callers):
                publish_one()
            start.wait()
            for _ in range(order.messages // order.callers):
                publish_one()
            stop.wait()
        except BaseException as error:
            errors.append(error)
            start.abort()
            stop.abort()

    threads = [
        threading.Thread(target=caller, args=(timed(order, meter, publish),), daemon=True)
        for _ in range(order.callers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def in_greenlets(order: Order, meter: Meter, publish: Callable[[], object]) -> None:
    """``publish`` from ``order.callers`` greenlets."""
    import gevent

    callers = [timed(order, meter, publish) for _ in range(order.callers)]

    def caller(publish_one: Callable[[], object], count: int) -> None:
        for _ in range(count):
            publish_one()

    def all_callers(count: int) -> None:
        share = count // order.callers
        gevent.joinall([gevent.spawn(caller, each, share) for each in callers], raise_error=True)

    all_callers(order.warmup)
    meter.start()
    all_callers(order.messages)
    meter.stop()


def in_loop(
    work: Callable[[Order, Meter], Coroutine[Any, Any, None]],
) -> Callable[[Order, Meter], None]:
    """What ``main`` takes, of a coroutine function."""
    import asyncio

    return lambda order, meter: asyncio.run(work(order, meter))


async def in_coroutines(
    order: Order, meter: Meter, publish: Callable[[], Awaitable[object]]
) -> None:
    """``publish`` from ``order.callers`` coroutines."""
    import asyncio

    async def caller(count: int) -> None:
        for _ in range(count):
            await publish()

    async def all_callers(count: int) -> None:
        share = count // order.batch // order.callers
        if order.callers == 1:
            await caller(share)
        else:
            await asyncio.gather(*(caller(share) for _ in range(order.callers)))

    await all_callers(order.warmup)
    meter.start()
    await all_callers(order.messages)
    meter.stop()


def main(
    kinds: Mapping[str, Callable[[Order, Meter], object]],
    distributions: Sequence[str] = (),
    load: Callable[[Order], object] | None = None,
) -> None:
    """Run the order given as JSON in the first argument and print the result as one JSON line.

    ``load`` imports what only this order needs: memory is counted above the imports.
    """
    order = Order(**json.loads(sys.argv[1]))
    if order.cpu is not None:
        os.sched_setaffinity(0, {order.cpu})
    if load is not None:
        load(order)
    meter = Meter(order)
    if not order.collect:
        gc.disable()
    kinds[order.kind](order, meter)
    result = meter.result()
    result["python"] = platform.python_version()
    result["versions"] = {name: importlib.metadata.version(name) for name in distributions}
    print(json.dumps(result), flush=True)
