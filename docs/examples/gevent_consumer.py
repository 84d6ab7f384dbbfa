"""A consumer whose handlers are greenlets: a hundred at a time wait for something slow."""

from gevent import monkey

monkey.patch_all()

import signal  # noqa: E402
import time  # noqa: E402

from gnsqsync import Message, Reader  # noqa: E402


def handle(message: Message) -> None:
    time.sleep(0.1)  # an HTTP request, a query: patched, so others run meanwhile
    print(f"done: {message.body.decode()}", flush=True)


reader = Reader("orders", "notify", handle, nsqd_tcp_addresses="127.0.0.1:4150", concurrency=100)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: reader.stop())
reader.start()
