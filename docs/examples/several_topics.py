"""Two topics in one process, with one limit for both, and an observer that counts."""

import signal
from collections import Counter

from gnsqsync import Message, Observer, Reader, ReaderGroup


class Counts(Observer):
    def __init__(self) -> None:
        self.counter: Counter[str] = Counter()

    def connected(self, nsqd_address: str) -> None:
        self.counter["connected"] += 1

    def batch(self, nsqd_address: str, finished: int, failed: int, seconds: float) -> None:
        self.counter["finished"] += finished


def show(message: Message) -> None:
    print(message.body.decode(), flush=True)


counts = Counts()
group = ReaderGroup(
    [
        Reader(topic, "show", show, nsqd_tcp_addresses="127.0.0.1:4150", observer=counts)
        for topic in ("orders", "refunds")
    ],
    max_in_flight=10,
)
signal.signal(signal.SIGTERM, lambda number, frame: group.stop())
group.start()
print(f"connected {counts.counter['connected']} times, finished {counts.counter['finished']}")
