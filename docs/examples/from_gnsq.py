"""What the page for users of gnsq shows: consume orders, publish a receipt, tell of lost ones."""

from gevent import monkey

monkey.patch_all()

import signal  # noqa: E402

from gnsqsync import Message, Reader, Requeue, Writer  # noqa: E402

writer = Writer("127.0.0.1:4150")


def handle(message: Message) -> None:
    order = message.json()
    if order["number"] < 0:
        raise ValueError("no such order")  # comes again after attempts * requeue_delay
    if order["number"] == 3 and message.attempts == 1:
        raise Requeue(backoff=False)
    writer.publish("receipts", b'{"order": %d}' % order["number"])
    print(f"published a receipt for {order['number']}", flush=True)


def given_up(message: Message, error: BaseException | None) -> None:
    print(f"given up: {message.body.decode()}", flush=True)


reader = Reader(
    "orders",
    "billing",
    handle,
    nsqd_tcp_addresses="127.0.0.1:4150",
    max_in_flight=10,
    max_attempts=2,
    requeue_delay=0.2,
    on_giving_up=given_up,
)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: reader.stop())

with writer:
    reader.start()
