"""gnsqsync with its own defaults; the flavour is the runtime, of which the 16 callers are too."""

from __future__ import annotations

import threading
from collections.abc import Callable

import measure
from measure import Meter, Order

from gnsqsync import Message, Reader, Writer


def in_greenlets(order: Order, meter: Meter, publish: Callable[[], object]) -> None:
    import gevent

    def caller(count: int) -> None:
        for _ in range(count):
            publish()

    def all_callers(count: int) -> None:
        share = count // order.callers
        gevent.joinall(
            [gevent.spawn(caller, share) for _ in range(order.callers)], raise_error=True
        )

    all_callers(order.warmup)
    meter.start()
    all_callers(order.messages)
    meter.stop()


def publish(order: Order, meter: Meter) -> None:
    topic, body = order.topic, order.body
    if order.callers == 1:
        run = measure.one_by_one
    elif order.flavour == "gevent":
        run = in_greenlets
    else:
        run = measure.in_threads
    with Writer(order.address, runtime=order.flavour) as writer:
        run(order, meter, lambda: writer.publish(topic, body))


def publish_many(order: Order, meter: Meter) -> None:
    topic, bodies = order.topic, [order.body] * order.batch
    with Writer(order.address, runtime=order.flavour) as writer:
        measure.one_by_one(order, meter, lambda: writer.publish_many(topic, bodies))


def consume(order: Order, meter: Meter) -> None:
    count, mark, reached = 0, order.warmup, meter.reached
    if order.flavour == "gevent":
        from gevent.event import Event

        done = Event()
    else:
        done = threading.Event()

    def handler(message: Message) -> None:
        nonlocal count, mark
        count += 1
        if count == mark:
            mark = reached(count)
            if mark < 0:
                done.set()

    reader = Reader(
        order.topic,
        order.channel,
        handler,
        nsqd_tcp_addresses=order.address,
        max_in_flight=order.max_in_flight,
        runtime=order.flavour,
    )
    reader.start(block=False)
    done.wait()
    reader.stop(timeout=5.0)
    reader.join(timeout=5.0)


if __name__ == "__main__":
    measure.main(
        {"publish": publish, "publish_many": publish_many, "consume": consume}, ("gnsqsync",)
    )
