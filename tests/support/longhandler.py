"""A program, which takes a minute: a Reader with a handler that sleeps for long.

    python -m tests.support.longhandler <nsqd's TCP address> <seconds>

Heartbeats come each second, and messages time out after five. When the long handler has returned,
the program prints its observations as JSON.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
import threading
import time

from gnsqsync import Message, Observer, Reader, Writer

TOPIC = "long_handler"


class Noting(Observer):
    def __init__(self) -> None:
        self.lost_reasons: list[str] = []

    def lost(self, nsqd_address: str, reason: Exception) -> None:
        self.lost_reasons.append(str(reason))


def main(nsqd: str, seconds: float) -> None:
    logging.basicConfig(level=logging.WARNING)
    begun: list[int] = []
    short: list[float] = []
    done = threading.Event()

    def handler(message: Message) -> None:
        if message.body != b"long":
            short.append(time.monotonic())
            return
        begun.append(message.attempts)
        time.sleep(seconds)
        done.set()

    observer = Noting()
    reader = Reader(
        TOPIC,
        "ch",
        handler,
        nsqd_tcp_addresses=nsqd,
        concurrency=2,
        max_in_flight=4,
        msg_timeout=5.0,
        heartbeat_interval=1.0,
        auto_touch=True,
        observer=observer,
    )
    with reader, Writer(nsqd) as writer:
        started = time.monotonic()
        writer.publish(TOPIC, b"long")
        while not begun:
            time.sleep(0.01)
        published = 0
        while not done.wait(0.5):
            writer.publish(TOPIC, b"short")
            published += 1
        while reader.stats().finished <= published:
            time.sleep(0.01)
        stats = reader.stats()
        lost = list(observer.lost_reasons)
    gaps = [later - earlier for earlier, later in itertools.pairwise(short)]
    print(
        json.dumps(
            {
                "attempts": begun,
                "seconds": time.monotonic() - started,
                "published": published,
                "short": len(short),
                "longest_gap": max(gaps),
                "finished": stats.finished,
                "requeued": stats.requeued,
                "answers_failed": stats.answers_failed,
                "connections": len(stats.connections),
                "lost": lost,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
