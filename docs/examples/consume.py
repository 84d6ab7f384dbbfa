"""Consume a channel with four workers until SIGTERM or Ctrl-C."""

import logging
import signal

from gnsqsync import Message, Reader, Requeue


def handle(message: Message) -> None:
    order = message.json()
    if order["number"] == 3 and message.attempts == 1:
        raise Requeue(delay=0.5, backoff=False)
    print(f"order {order['number']}, attempt {message.attempts}", flush=True)


logging.basicConfig(level=logging.INFO)

reader = Reader("orders", "billing", handle, nsqd_tcp_addresses="127.0.0.1:4150", concurrency=4)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: reader.stop(timeout=20))

result = reader.start()
print(f"stopped; unanswered: {result.unanswered}, workers running: {result.workers_running}")
