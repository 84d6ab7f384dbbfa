"""asyncnsq with its own defaults; 16 callers are 16 coroutines."""

from __future__ import annotations

import asyncio
from operator import attrgetter

import measure
from asyncnsq import create_reader, create_writer
from measure import Meter, Order


async def publish(order: Order, meter: Meter) -> None:
    host, port = order.host_port
    writer, topic, body = await create_writer(host=host, port=port), order.topic, order.body
    await measure.in_coroutines(order, meter, lambda: writer.pub(topic, body))
    writer.close()


async def publish_many(order: Order, meter: Meter) -> None:
    host, port = order.host_port
    writer, topic = await create_writer(host=host, port=port), order.topic
    bodies = [order.body] * order.batch
    await measure.in_coroutines(order, meter, lambda: writer.mpub(topic, *bodies))
    writer.close()


async def consume(order: Order, meter: Meter) -> None:
    done = asyncio.Event()
    reader = await create_reader([order.address], max_in_flight=order.max_in_flight)
    reader.set_message_handler(
        measure.counting_handler(order, meter, attrgetter("body"), done.set),
        concurrency=order.workers,
    )
    await reader.subscribe(order.topic, order.channel)
    await done.wait()
    reader.close()


if __name__ == "__main__":
    measure.main(
        {
            "publish": measure.in_loop(publish),
            "publish_many": measure.in_loop(publish_many),
            "consume": measure.in_loop(consume),
            "latency": measure.in_loop(consume),
        },
        ("asyncnsq",),
    )
