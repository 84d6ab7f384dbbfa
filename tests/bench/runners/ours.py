"""gnsqsync with its own defaults; the flavour is the runtime, of which the 16 callers are too."""

from __future__ import annotations

import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from operator import attrgetter, itemgetter
from pathlib import Path
from time import perf_counter
from typing import Any

import measure
from measure import Meter, Order

from gnsqsync import Message, Reader, ReaderGroup, Writer
from gnsqsync.runtime import choose


def load(order: Order) -> None:
    if order.flavour == "gevent":
        import gevent.event  # noqa: F401
    choose(runtime_of(order))


def runtime_of(order: Order) -> str:
    return "gevent" if order.flavour == "gevent" else "threads"


def publish(order: Order, meter: Meter) -> None:
    topic, body = order.topic, order.body
    if order.callers == 1:
        run = measure.one_by_one
    elif order.flavour == "gevent":
        run = measure.in_greenlets
    else:
        run = measure.in_threads
    with Writer(order.address, runtime=order.flavour) as writer:
        run(order, meter, lambda: writer.publish(topic, body))


def publish_many(order: Order, meter: Meter) -> None:
    topic, bodies = order.topic, [order.body] * order.batch
    with Writer(order.address, runtime=order.flavour) as writer:
        measure.one_by_one(order, meter, lambda: writer.publish_many(topic, bodies))


def options(order: Order) -> dict[str, Any]:
    """The keywords of a Reader that a row asks for."""
    chosen: dict[str, Any] = {
        "nsqd_tcp_addresses": order.address.split(","),
        "max_in_flight": order.max_in_flight,
        "concurrency": order.workers,
        "latency": order.latency,
        "runtime": runtime_of(order),
    }
    if order.transport == "tls":
        chosen["tls_ca_file"] = order.ca_file
    elif order.transport:
        chosen[order.transport] = True
    return chosen


def compute_beside(flavour: str) -> None:
    """``busy``: a thread that never waits; ``busy-SECONDS``: with that switch interval."""
    _, _, interval = flavour.partition("-")
    if interval:
        sys.setswitchinterval(float(interval))

    def compute() -> None:
        while True:
            sum(range(1000))

    threading.Thread(target=compute, daemon=True).start()


def consume(order: Order, meter: Meter) -> None:
    counting_runtime = None
    if order.flavour.startswith("busy"):
        compute_beside(order.flavour)
    if order.flavour == "counting":
        from tests.support.counting import CountingRuntime

        counting_runtime = CountingRuntime(choose("threads"))
    if order.flavour == "gevent":
        from gevent.event import Event

        done = Event()
    else:
        done = threading.Event()
    handler = measure.counting_handler(order, meter, attrgetter("body"), done.set)
    if order.handler_seconds:
        handler = Taking(order, handler)
    if order.flavour == "traced":
        handler = Traced(order, meter, handler)
    chosen = options(order)
    if counting_runtime is not None:
        chosen["runtime"] = counting_runtime
    readers = [Reader(topic, order.channel, handler, **chosen) for topic in order.topic.split(",")]
    consumer: Reader | ReaderGroup = readers[0]
    if len(readers) > 1:
        consumer = ReaderGroup(readers, max_in_flight=order.max_in_flight, runtime=order.flavour)
    if isinstance(handler, Traced):
        handler.reader = readers[0]
    consumer.start(block=False)
    done.wait()
    if counting_runtime is not None:
        received = sum(reader.stats().received for reader in readers)
        counts = counting_runtime.counts
        meter.extra = {"received": received, "sends": counts.sends, "recvs": counts.recvs}
    if isinstance(handler, Taking):
        meter.extra = handler.work(*meter.window)
    consumer.stop(timeout=5.0)
    consumer.join()


class Traced:
    """A handler that begins when all messages that may be in flight are, and looks at what
    Python's objects take then: bytes by the file that made them."""

    def __init__(self, order: Order, meter: Meter, counted: Callable[[Any], None]) -> None:
        tracemalloc.start()
        self.reader: Reader | None = None
        self._waiting = order.max_in_flight
        self._meter = meter
        self._counted = counted
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        with self._lock:
            if not self._meter.extra:
                self._look()
        self._counted(message)

    def _look(self) -> None:
        assert self.reader is not None
        while self.reader.stats().in_flight < self._waiting:
            time.sleep(0.01)
        found = tracemalloc.take_snapshot().statistics("filename")
        tracemalloc.stop()
        self._meter.extra = {"objects": {_short(s.traceback[0].filename): s.size for s in found}}


def _short(file: str) -> str:
    """From its package or the standard library on."""
    _, package, rest = file.rpartition("gnsqsync/")
    return package + rest if package else Path(file).name


class Taking:
    """A handler that takes its time: it computes when that is short, and waits otherwise."""

    def __init__(self, order: Order, counted: Callable[[Any], None]) -> None:
        self._seconds = order.handler_seconds
        self._counted = counted
        self._workers = order.workers
        # Who, from when, until when.
        self._spans: list[tuple[int, float, float]] = []

    def __call__(self, message: Message) -> None:
        began = perf_counter()
        if self._seconds < 0.0005:
            while perf_counter() - began < self._seconds:
                pass
        else:
            time.sleep(self._seconds)
            self._spans.append((threading.get_ident(), began, perf_counter()))
        self._counted(message)

    def work(self, start: float, stop: float) -> dict[str, Any]:
        """How busy the workers were between two moments; nothing when it was not noted."""
        if not self._spans:
            return {}
        spent, most_idle, shares = 0.0, 0.0, {}
        last: dict[int, float] = {}
        for worker, began, ended in sorted(self._spans, key=itemgetter(1)):
            inside = min(ended, stop) - max(began, start)
            if inside > 0:
                spent += inside
                shares[worker] = shares.get(worker, 0) + 1
                most_idle = max(most_idle, began - last.get(worker, began))
            last[worker] = ended
        return {
            "busy": spent / ((stop - start) * self._workers),
            "most_idle": most_idle,
            "fewest": min(shares.values()),
            "most": max(shares.values()),
        }


if __name__ == "__main__":
    measure.main(
        {
            "publish": publish,
            "waits": publish,
            "publish_many": publish_many,
            "consume": consume,
            "latency": consume,
        },
        ("gnsqsync",),
        load,
    )
