"""What the page for users of pynsq shows: consume orders, publish a receipt for each."""

import signal

from gnsqsync import Message, Reader, Requeue, Writer

writer = Writer("127.0.0.1:4150")


def handle(message: Message) -> None:
    order = message.json()
    if order["number"] == 3 and message.attempts == 1:
        raise Requeue(delay=0.5, backoff=False)
    writer.publish("receipts", b'{"order": %d}' % order["number"])  # returns after nsqd's OK
    print(f"published a receipt for {order['number']}", flush=True)


reader = Reader(
    topic="orders",
    channel="billing",
    handler=handle,
    nsqd_tcp_addresses=["127.0.0.1:4150"],
    max_in_flight=10,
    max_attempts=5,
    requeue_delay=30,
    on_giving_up="discard",
)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: reader.stop(timeout=20))

with writer:
    reader.start()
