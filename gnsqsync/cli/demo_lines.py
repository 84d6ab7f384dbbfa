"""Shared parts of both demonstrations: start servers, publish numbered lines, compare arrivals.

Knows no consumer and draws nothing.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import resources

import click

from gnsqsync import NsqdHTTP, Writer
from gnsqsync.cli.common import Flag
from gnsqsync.embedded import Nsqd, Nsqlookupd

TOPIC = "demo"
BATCH = 100
# Lower bound of lines. The text of the package is repeated to reach it.
AT_LEAST = 5000
SHOWN_MISSING = 10
# Commands to try after the demonstrations, and what each does.
NEXT = {
    "gnsqsync cluster": "servers that stay, on NSQ's own ports, with a web page",
    "gnsqsync tail orders -l 127.0.0.1:4161": "prints what comes",
    "gnsqsync pub orders -l 127.0.0.1:4161": "publishes what you type",
    "gnsqsync consume --help": "runs a function of yours as a consumer",
}
NEXT_WITH_SPARK = {
    "gnsqsync cluster": "servers that stay, on NSQ's own ports, with a web page",
    "gnsqsync pub orders -l 127.0.0.1:4161": "publishes what you type",
    "gnsqsync spark archive --help": "keeps topics of yours as Parquet",
    "gnsqsync spark replay --help": "publishes messages of an archive again",
}


def start_servers(
    stack: ExitStack, servers: list[Nsqd | Nsqlookupd], count: int, channel: str
) -> tuple[Nsqlookupd, list[Nsqd]]:
    """Start an nsqlookupd and ``count`` nsqds, registered with it, with topic and channel."""
    click.echo(f"starting an nsqlookupd and {count} nsqds, embedded, on free ports of this machine")
    lookupd = stack.enter_context(Nsqlookupd())
    servers.append(lookupd)
    nsqds = []
    for _ in range(count):
        nsqd = stack.enter_context(Nsqd(lookupd_tcp_addresses=lookupd.tcp_address))
        servers.append(nsqd)
        nsqds.append(nsqd)
        with NsqdHTTP(nsqd.http_address) as http:
            http.create_topic(TOPIC)
            http.create_channel(TOPIC, channel)
    click.echo(
        f"nsqlookupd at {lookupd.http_address}, nsqds at"
        f" {', '.join(nsqd.tcp_address for nsqd in nsqds)}"
    )
    return lookupd, nsqds


def read_lines(path: str | None, count: int | None = None) -> list[bytes]:
    """Return the lines of the file, or of the package's text if ``path`` is None.

    With ``count`` return that number of lines: the first ones, or all of them repeated.
    """
    if path is not None:
        with open(path, "rb") as file:
            lines = file.read().removesuffix(b"\n").split(b"\n")
    else:
        text = resources.files("gnsqsync.cli").joinpath("demo.txt").read_bytes()
        lines = text.removesuffix(b"\n").split(b"\n")
        lines *= -(-AT_LEAST // len(lines))
    return lines if count is None else list(itertools.islice(itertools.cycle(lines), count))


def batches(lines: Sequence[bytes], start: int, step: int) -> Iterator[list[bytes]]:
    """Yield each ``step``-th batch from ``start`` on. A body is number, tab, line."""
    for first in range(start * BATCH, len(lines), step * BATCH):
        numbered = enumerate(lines[first : first + BATCH], first + 1)
        yield [b"%d\t%b" % pair for pair in numbered]


class Publishers:
    """Several threads, each with its own Writer to both nsqds, that publish all lines."""

    def __init__(self, lines: Sequence[bytes], addresses: list[str], count: int) -> None:
        self._lines = lines
        self._addresses = addresses
        self._count = count
        self._stop = Flag()
        self._pool = ThreadPoolExecutor(count)
        self._futures: list[Future[None]] = []
        # Lines of each published batch. All threads append to it, which is atomic.
        self._published: list[int] = []
        self._began = 0.0
        self.seconds: float = 0.0

    def start(self) -> None:
        self._began = time.monotonic()
        self._futures = [self._pool.submit(self._publish, n) for n in range(self._count)]

    def _publish(self, number: int) -> None:
        with Writer(self._addresses) as writer:
            # Both nsqds are connected first, so that they share the lines evenly from the start.
            writer.connect()
            for turn, bodies in enumerate(batches(self._lines, number, self._count)):
                if not self._wait((number + turn * self._count) * BATCH):
                    return
                writer.publish_many(TOPIC, bodies)
                self._published.append(len(bodies))

    def _wait(self, place: int) -> bool:
        """Wait until the batch that begins after ``place`` lines may be sent.

        Return False if no more batches may be sent.
        """
        return not self._stop.is_set()

    @property
    def published(self) -> int:
        return sum(self._published)

    def is_done(self) -> bool:
        """Return True if all threads have ended. Raise the exception of a thread that failed."""
        if not all(future.done() for future in self._futures):
            return False
        for future in self._futures:
            future.result()
        if not self.seconds:
            self.seconds = time.monotonic() - self._began
        return True

    def close(self) -> None:
        self._stop.set()
        self._pool.shutdown()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result: numbers that did not arrive, numbers that arrived more than once, wrong lines."""

    missing: tuple[int, ...]
    repeated: tuple[int, ...]
    wrong: int

    @property
    def good(self) -> bool:
        return not self.missing and not self.wrong


def verify(total: int, arrivals: Sequence[int], wrong: int) -> Verdict:
    """Compare the numbers that arrived with 1 to ``total``."""
    counts = Counter(arrivals)
    return Verdict(
        missing=tuple(number for number in range(1, total + 1) if number not in counts),
        repeated=tuple(sorted(number for number, count in counts.items() if count > 1)),
        wrong=wrong,
    )


def say_next(commands: Mapping[str, str]) -> None:
    """Print the commands to try now, as the last lines."""
    width = max(map(len, commands))
    click.echo("what to do next, each in a terminal of its own:")
    for command, text in commands.items():
        click.echo(f"  {command.ljust(width)}  {text}")


def numbers_text(numbers: Sequence[int]) -> str:
    """Return the first few numbers, and the number of further ones."""
    shown = ", ".join(map(str, numbers[:SHOWN_MISSING]))
    more = len(numbers) - SHOWN_MISSING
    return f"{shown} and {more:,} more" if more > 0 else shown
