"""Every topic whose name begins with "orders", whenever it appears, with one limit for all."""

import signal
from functools import partial

from gnsqsync import Message, Reader, TopicGroup

NSQLOOKUPD = "127.0.0.1:4161"


def show(topic: str, message: Message) -> None:
    print(topic, message.body.decode(), flush=True)


def make_reader(topic: str) -> Reader:
    return Reader(topic, "show", partial(show, topic), lookupd_http_addresses=NSQLOOKUPD)


group = TopicGroup("^orders", make_reader, lookupd_http_addresses=NSQLOOKUPD, max_in_flight=10)
signal.signal(signal.SIGTERM, lambda number, frame: group.stop())
group.start()
