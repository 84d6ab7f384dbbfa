"""gnsqsync with its own defaults; the flavour is the runtime, of which the 16 callers are too."""

from __future__ import annotations

import threading
from operator import attrgetter
from typing import Any

import measure
from measure import Meter, Order

from gnsqsync import Reader, Writer


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
    """The keywords of Reader and Writer that a row asks for."""
    chosen: dict[str, Any] = {"nsqd_tcp_addresses": order.address, "runtime": order.flavour}
    if order.transport == "tls":
        chosen["tls_ca_file"] = order.ca_file
    elif order.transport:
        chosen[order.transport] = True
    return chosen


def consume(order: Order, meter: Meter) -> None:
    if order.flavour == "gevent":
        from gevent.event import Event

        done = Event()
    else:
        done = threading.Event()
    handler = measure.counting_handler(order, meter, attrgetter("body"), done.set)
    reader = Reader(
        order.topic,
        order.channel,
        handler,
        max_in_flight=order.max_in_flight,
        concurrency=order.workers,
        **options(order),
    )
    reader.start(block=False)
    done.wait()
    reader.stop(timeout=5.0)
    reader.join()


if __name__ == "__main__":
    measure.main(
        {
            "publish": publish,
            "publish_many": publish_many,
            "consume": consume,
            "latency": consume,
        },
        ("gnsqsync",),
    )
