"""gnsq on gevent with its defaults."""

from __future__ import annotations

from typing import Any

import gevent
import gnsq
import waiting
from waiting import Order


def run(order: Order) -> None:
    note = waiting.handler_of(order)
    options = {}
    if order.requeue_delay is not None:
        # gnsq counts milliseconds.
        options["requeue_delay"] = round(1000 * order.requeue_delay)

    def consumer(topic: str) -> Any:
        def handle(_: gnsq.Consumer, message: gnsq.Message) -> None:
            note(topic, message.body, message.attempts)

        return gnsq.Consumer(
            topic,
            order.channel,
            nsqd_tcp_addresses=order.nsqds,
            lookupd_http_addresses=order.lookupds,
            message_handler=handle,
            **options,
        )

    for topic in order.topics:
        consumer(topic).start(block=False)
    gevent.sleep(1e6)


if __name__ == "__main__":
    waiting.main(run)
