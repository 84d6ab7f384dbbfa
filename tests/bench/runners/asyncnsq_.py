"""asyncnsq with its own defaults; 16 callers are 16 coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
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


def in_loop(
    work: Callable[[Order, Meter], Awaitable[None]],
) -> Callable[[Order, Meter], None]:
    async def run(order: Order, meter: Meter) -> None:
        await work(order, meter)

    return lambda order, meter: asyncio.run(run(order, meter))


if __name__ == "__main__":
    measure.main(
        {
            "publish": in_loop(publish),
            "publish_many": in_loop(publish_many),
            "consume": in_loop(consume),
            "latency": in_loop(consume),
        },
        ("asyncnsq",),
    )
