"""nsq-py with its own defaults: a Client for publishing, a Reader that is iterated over.

In the row of 16 callers they are threads on one Client, as its lock suggests; they read each
other's answers, and most of them wait for ever.
"""

from __future__ import annotations

from operator import attrgetter

import measure
from measure import Meter, Order
from nsq.client import Client
from nsq.reader import Reader
from nsq.response import Response


def answered(responses: list[Response]) -> None:
    if any(response.data != b"OK" for response in responses):
        raise RuntimeError(f"publish answered by {[response.data for response in responses]!r}")


def publish(order: Order, meter: Meter) -> None:
    client = Client(nsqd_tcp_addresses=[order.address])
    run = measure.one_by_one if order.callers == 1 else measure.in_threads
    run(order, meter, lambda: answered(client.pub(order.topic.encode(), order.body)))


def publish_many(order: Order, meter: Meter) -> None:
    client = Client(nsqd_tcp_addresses=[order.address])
    bodies = [order.body] * order.batch
    measure.one_by_one(order, meter, lambda: answered(client.mpub(order.topic.encode(), *bodies)))


def consume(order: Order, meter: Meter) -> None:
    handler = measure.counting_handler(order, meter, attrgetter("body"), lambda: None)
    reader = Reader(
        order.topic.encode(),
        order.channel.encode(),
        nsqd_tcp_addresses=[order.address],
        max_in_flight=order.max_in_flight,
    )
    for message in reader:
        handler(message)
        message.fin()
        if meter.stopped:
            break


if __name__ == "__main__":
    measure.main(
        {
            "publish": publish,
            "publish_many": publish_many,
            "consume": consume,
            "latency": consume,
        },
        ("nsq-py",),
    )
