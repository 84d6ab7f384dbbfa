"""gnsqsync with its defaults; the package is the one on PYTHONPATH, so an older one will do."""

from __future__ import annotations

import os
import threading
from functools import partial
from os.path import commonpath
from typing import Any

import waiting
from waiting import Order

import gnsqsync
from gnsqsync import Message, Reader, TopicGroup

RUNTIME = os.environ.get("WAITS_RUNTIME", "threads")


def check_package() -> None:
    """Raise RuntimeError if another package than that of the environment was imported."""
    found, wanted = str(gnsqsync.__file__), os.environ["PYTHONPATH"]
    if not found.startswith(wanted + os.sep):
        raise RuntimeError(f"gnsqsync came from {found}, and not from {wanted}")


def run(order: Order) -> None:
    note = waiting.handler_of(order)

    def handle(topic: str, message: Message) -> None:
        note(topic, message.body, message.attempts)

    def reader(topic: str, **more: Any) -> Reader:
        if order.nsqds:
            more["nsqd_tcp_addresses"] = order.nsqds
        if order.lookupds:
            more["lookupd_http_addresses"] = order.lookupds
        if order.requeue_delay is not None:
            more["requeue_delay"] = order.requeue_delay
        return Reader(topic, order.channel, partial(handle, topic), **more)

    if order.together:
        prefix = commonpath(order.topics)
        group = TopicGroup(
            prefix + ".*",
            lambda topic: reader(topic, runtime=RUNTIME),
            lookupd_http_addresses=order.lookupds,
            max_in_flight=1,
            runtime=RUNTIME,
        )
        group.start(block=False)
    else:
        for topic in order.topics:
            reader(topic, runtime=RUNTIME).start(block=False)
    if RUNTIME == "gevent":
        import gevent

        gevent.sleep(1e6)
    threading.Event().wait()


if __name__ == "__main__":
    check_package()
    waiting.main(run)
