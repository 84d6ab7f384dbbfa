"""gnsq on gevent, unpatched, with its own defaults; 16 callers are 16 greenlets."""

from __future__ import annotations

import gevent
import gnsq
import measure
from gevent.event import Event
from measure import Meter, Order


def producer(order: Order) -> gnsq.Producer:
    made = gnsq.Producer(order.address)
    made.start()
    return made


def publish(order: Order, meter: Meter) -> None:
    client, topic, body = producer(order), order.topic, order.body
    if order.callers == 1:
        measure.one_by_one(order, meter, lambda: client.publish(topic, body))
        return

    def caller(count: int) -> None:
        for _ in range(count):
            client.publish(topic, body)

    def all_callers(count: int) -> None:
        share = count // order.callers
        gevent.joinall(
            [gevent.spawn(caller, share) for _ in range(order.callers)], raise_error=True
        )

    all_callers(order.warmup)
    meter.start()
    all_callers(order.messages)
    meter.stop()


def publish_many(order: Order, meter: Meter) -> None:
    client, topic, bodies = producer(order), order.topic, [order.body] * order.batch
    measure.one_by_one(order, meter, lambda: client.multipublish(topic, bodies))


def consume(order: Order, meter: Meter) -> None:
    count, mark, reached, done = 0, order.warmup, meter.reached, Event()

    def handler(consumer: gnsq.Consumer, message: gnsq.Message) -> None:
        nonlocal count, mark
        count += 1
        if count == mark:
            mark = reached(count)
            if mark < 0:
                done.set()

    consumer = gnsq.Consumer(
        order.topic,
        order.channel,
        order.address,
        message_handler=handler,
        max_in_flight=order.max_in_flight,
    )
    consumer.start(block=False)
    done.wait()


if __name__ == "__main__":
    measure.main(
        {"publish": publish, "publish_many": publish_many, "consume": consume},
        ("gnsq", "gevent", "greenlet", "blinker"),
    )
