"""What a copy costs: publishes to two real nsqds with copies=1 and copies=2, by turns.

    python -m tests.bench.copies [--messages 5000] [--rounds 5] [--threads 1]

Prints medians: milliseconds until publish() returns, and CPU of this process a publish.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time

from gnsqsync import Writer
from tests.support.servers import Server


def measure(writer: Writer, messages: int, threads: int) -> tuple[float, float]:
    """Milliseconds of a publish for who waits for it, and microseconds of CPU."""
    body = b"x" * 200

    def publish() -> None:
        for _ in range(messages // threads):
            writer.publish("bench", body)

    several = [threading.Thread(target=publish) for _ in range(threads)]
    wall, cpu = time.monotonic(), time.process_time()
    for thread in several:
        thread.start()
    for thread in several:
        thread.join()
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    count = messages // threads * threads
    return wall / count * threads * 1e3, cpu / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    servers = [Server("real", "nsqd").start() for _ in range(2)]
    found: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    try:
        addresses = ["{}:{}".format(*server.tcp_address) for server in servers]
        writers = {copies: Writer(addresses, copies=copies, headers=True) for copies in found}
        for writer in writers.values():
            writer.connect()
        for _ in range(given.rounds):
            for copies, writer in writers.items():
                found[copies].append(measure(writer, given.messages, given.threads))
        for writer in writers.values():
            writer.close()
    finally:
        for server in servers:
            server.discard()
    for copies, several in found.items():
        latency, cpu = (statistics.median(values) for values in zip(*several, strict=True))
        print(f"copies={copies}, {given.threads} threads: {latency:.3f} ms, {cpu:.0f} us CPU")


if __name__ == "__main__":
    main()
