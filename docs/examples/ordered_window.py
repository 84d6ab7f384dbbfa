"""Loose order: messages of two seconds are held back and handled by their timestamps."""

import heapq
import signal
import time

from gnsqsync import Message, Reader

WINDOW = 2.0  # seconds; far below nsqd's --msg-timeout of 60
reader = Reader("orders", "ordered", nsqd_tcp_addresses="127.0.0.1:4150", max_in_flight=1000)
signal.signal(signal.SIGTERM, lambda number, frame: reader.stop(timeout=5))


def handle(message: Message) -> None:
    print(message.body.decode(), flush=True)


held: list[tuple[int, str, Message]] = []
with reader:
    for batch in reader.batches(max_messages=100, max_wait=0.1):
        for message in batch:
            heapq.heappush(held, (message.timestamp, message.id, message))
        old_enough = time.time_ns() - WINDOW * 1e9
        while held and held[0][0] <= old_enough:
            message = heapq.heappop(held)[2]
            handle(message)
            message.finish()
