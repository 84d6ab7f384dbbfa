"""gnsq on gevent, unpatched, with its own defaults; 16 callers are 16 greenlets."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

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

    measure.in_greenlets(order, meter, lambda: client.publish(topic, body))


def publish_many(order: Order, meter: Meter) -> None:
    client, topic, bodies = producer(order), order.topic, [order.body] * order.batch
    measure.one_by_one(order, meter, lambda: client.multipublish(topic, bodies))


def options(order: Order) -> dict[str, Any]:
    if order.transport == "tls":
        return {"tls_v1": True, "tls_options": {"ca_certs": order.ca_file}}
    return {order.transport: True} if order.transport else {}


def consume(order: Order, meter: Meter) -> None:
    done = Event()
    counting = measure.counting_handler(order, meter, attrgetter("body"), done.set)

    def handler(consumer: gnsq.Consumer, message: gnsq.Message) -> None:
        counting(message)

    consumer = gnsq.Consumer(
        order.topic,
        order.channel,
        order.address,
        message_handler=handler,
        max_in_flight=order.max_in_flight,
        **options(order),
    )
    consumer.start(block=False)
    done.wait()


if __name__ == "__main__":
    measure.main(
        {
            "publish": publish,
            "publish_many": publish_many,
            "consume": consume,
            "latency": consume,
        },
        ("gnsq", "gevent", "greenlet", "blinker"),
    )
