"""Publish and consume in an asyncio program."""

import asyncio

import gnsqsync


async def main() -> None:
    loop = asyncio.get_running_loop()
    confirmed: asyncio.Queue[bytes] = asyncio.Queue()

    def handle(message: gnsqsync.Message) -> None:
        # On a worker thread. Wait for what the event loop does, so that a failure is seen.
        asyncio.run_coroutine_threadsafe(confirm(message.body), loop).result()

    async def confirm(order: bytes) -> None:
        await confirmed.put(order)

    writer = gnsqsync.Writer(["127.0.0.1:4150"])
    reader = gnsqsync.Reader(
        "orders", "confirm", handle, nsqd_tcp_addresses=["127.0.0.1:4150"], max_in_flight=50
    )
    try:
        await asyncio.to_thread(writer.connect)
        reader.start(block=False)
        # Many at a time: each Future ends when nsqd has said OK.
        async with asyncio.TaskGroup() as tasks:
            for number in range(100):
                future = writer.publish_async("orders", f"order {number}")
                tasks.create_task(confirmed_by_nsqd(future))
        # One, as anywhere else, on another thread.
        await asyncio.to_thread(writer.publish, "orders", "the last one")
        for _ in range(101):
            await confirmed.get()
        print("101 orders confirmed")
    finally:
        reader.stop()
        await asyncio.to_thread(reader.join)
        await asyncio.to_thread(writer.close)


async def confirmed_by_nsqd(future) -> None:
    await asyncio.wrap_future(future)


if __name__ == "__main__":
    asyncio.run(main())
