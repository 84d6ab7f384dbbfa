"""pynsq on tornado with its own defaults; 16 callers are 16 coroutines.

pynsq only has callbacks, so each publish is awaited through a future that the callback resolves,
which is what its users write in a coroutine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import measure
import nsq
from measure import Meter, Order


async def writer(order: Order) -> nsq.Writer:
    made = nsq.Writer([order.address])
    # pynsq tells nobody when it is connected.
    while not made.conns:
        await asyncio.sleep(0.01)
    return made


async def answer(publish: Callable[..., object], topic: str, data: object) -> None:
    waiter = asyncio.get_running_loop().create_future()
    publish(topic, data, callback=lambda connection, reply: waiter.set_result(reply))
    reply = await waiter
    if reply != b"OK":
        raise RuntimeError(f"publish answered by {reply!r}")


async def publish(order: Order, meter: Meter) -> None:
    client, topic, body = await writer(order), order.topic, order.body
    await measure.in_coroutines(order, meter, lambda: answer(client.pub, topic, body))


async def publish_many(order: Order, meter: Meter) -> None:
    client, topic, bodies = await writer(order), order.topic, [order.body] * order.batch
    await measure.in_coroutines(order, meter, lambda: answer(client.mpub, topic, bodies))


def options(order: Order) -> dict[str, Any]:
    if order.transport == "tls":
        return {"tls_v1": True, "tls_options": {"ca_certs": order.ca_file}}
    return {order.transport: True} if order.transport else {}


async def consume(order: Order, meter: Meter) -> None:
    done = asyncio.Event()
    counting = measure.counting_handler(order, meter, attrgetter("body"), done.set)

    def handler(message: nsq.Message) -> bool:
        counting(message)
        return True

    nsq.Reader(
        order.topic,
        order.channel,
        message_handler=handler,
        nsqd_tcp_addresses=[order.address],
        max_in_flight=order.max_in_flight,
        **options(order),
    )
    await done.wait()


if __name__ == "__main__":
    measure.main(
        {
            "publish": measure.in_loop(publish),
            "publish_many": measure.in_loop(publish_many),
            "consume": measure.in_loop(consume),
            "latency": measure.in_loop(consume),
        },
        ("pynsq", "tornado"),
    )
