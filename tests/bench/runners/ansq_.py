"""ansq with its own defaults; 16 callers are 16 coroutines. It has RDY 1 and no other."""

from __future__ import annotations

import asyncio

import ansq
import measure
from measure import Meter, Order


async def publish(order: Order, meter: Meter) -> None:
    writer, topic, body = await ansq.create_writer([order.address]), order.topic, order.body
    await measure.in_coroutines(order, meter, lambda: writer.pub(topic, body))
    await writer.close()


async def publish_many(order: Order, meter: Meter) -> None:
    writer, topic = await ansq.create_writer([order.address]), order.topic
    bodies = [order.body] * order.batch
    await measure.in_coroutines(order, meter, lambda: writer.mpub(topic, *bodies))
    await writer.close()


async def consume(order: Order, meter: Meter) -> None:
    done = asyncio.Event()
    count = measure.counting_handler(order, meter, lambda message: message.body, done.set)
    reader = await ansq.create_reader(order.topic, order.channel, [order.address])
    async for message in reader.messages():
        count(message)
        await message.fin()
        if done.is_set():
            break
    await reader.close()


if __name__ == "__main__":
    measure.main(
        {
            "publish": measure.in_loop(publish),
            "publish_many": measure.in_loop(publish_many),
            "consume": measure.in_loop(consume),
        },
        ("ansq",),
    )
