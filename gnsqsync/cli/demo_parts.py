"""Shared parts of both demonstrations: servers, numbered lines, publishers, the verdict.

Knows no consumer and draws nothing.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from importlib import resources
from pathlib import Path

import click

from gnsqsync import NsqdHTTP, Writer
from gnsqsync.cli.common import Flag, Scope, rate_text
from gnsqsync.embedded import Nsqd, Nsqlookupd
from gnsqsync.stats import counted

TOPIC = "demo"
BATCH = 100
# Lower bound of lines. The text of the package is repeated to reach it.
AT_LEAST = 5000
SHOWN = 10
# Commands to try after the demonstrations, and what each does.
CLUSTER = {"gnsqsync cluster": "servers that stay, on NSQ's own ports, with a web page"}
TAIL = {"gnsqsync tail orders -l 127.0.0.1:4161": "prints what comes"}
PUB = {"gnsqsync pub orders -l 127.0.0.1:4161": "publishes what you type"}
CONSUME = {"gnsqsync consume --help": "runs a function of yours as a consumer"}
ARCHIVE = {"gnsqsync spark archive --help": "keeps topics of yours as Parquet"}
REPLAY = {"gnsqsync spark replay --help": "publishes messages of an archive again"}
NEXT = CLUSTER | TAIL | PUB | CONSUME
NEXT_WITH_SPARK = CLUSTER | PUB | ARCHIVE | REPLAY


def start_servers(stack: ExitStack, count: int, channel: str) -> tuple[Nsqlookupd, list[Nsqd]]:
    """Start an nsqlookupd and ``count`` nsqds, registered with it, with topic and channel."""
    click.echo(f"starting an nsqlookupd and {count} nsqds, embedded, on free ports of this machine")
    lookupd = stack.enter_context(Nsqlookupd())
    address = lookupd.tcp_address
    nsqds = [stack.enter_context(Nsqd(lookupd_tcp_addresses=address)) for _ in range(count)]
    for nsqd in nsqds:
        with NsqdHTTP(nsqd.http_address) as http:
            http.create_topic(TOPIC)
            http.create_channel(TOPIC, channel)
    addresses = ", ".join(nsqd.tcp_address for nsqd in nsqds)
    click.echo(f"nsqlookupd at {lookupd.http_address}, nsqds at {addresses}")
    return lookupd, nsqds


def read_lines(path: str | None, count: int | None = None) -> list[bytes]:
    """Return the lines of the file, or of the package's text if ``path`` is None.

    With ``count`` return that number of lines: the first ones, or all of them repeated.
    """
    file = resources.files("gnsqsync.cli").joinpath("demo.txt") if path is None else Path(path)
    lines = file.read_bytes().removesuffix(b"\n").split(b"\n")
    if path is None:
        lines *= -(-AT_LEAST // len(lines))
    return lines if count is None else list(itertools.islice(itertools.cycle(lines), count))


def number_of(body: bytes, lines: Sequence[bytes]) -> int:
    """Return the number in a body (number, tab, line), or 0 if it was not made from ``lines``."""
    text, _, line = body.partition(b"\t")
    number = int(text) if text.isdigit() else 0
    return number if 1 <= number <= len(lines) and lines[number - 1] == line else 0


class Publishers(Scope):
    """Threads, each with its own Writer to all nsqds, that publish the first ``limit`` lines."""

    def __init__(
        self, lines: Sequence[bytes], nsqds: Iterable[Nsqd], threads: int, limit: float = math.inf
    ) -> None:
        self.limit = limit
        self.total: int = len(lines)
        self._lines = lines
        self._addresses = [nsqd.tcp_address for nsqd in nsqds]
        self._threads = threads
        self._stop = Flag()
        self._pool = ThreadPoolExecutor(threads)
        self._futures: list[Future[None]] = []
        # Lines of each published batch. All threads append to it, which is atomic.
        self._published: list[int] = []
        self._began = self._seconds = 0.0

    def begin(self) -> None:
        self._began = time.monotonic()
        self._futures = [self._pool.submit(self._publish, n) for n in range(self._threads)]

    def end(self) -> None:
        self._stop.set()
        self._pool.shutdown()

    def _publish(self, thread: int) -> None:
        with Writer(self._addresses) as writer:
            # Connections to all nsqds come first, so that they share the lines from the start.
            writer.connect()
            for first in range(thread * BATCH, len(self._lines), self._threads * BATCH):
                while first >= self.limit and not self._stop.wait(0.05):
                    pass
                if self._stop.is_set():
                    return
                batch = enumerate(self._lines[first : first + BATCH], first + 1)
                bodies = [b"%d\t%b" % pair for pair in batch]
                writer.publish_many(TOPIC, bodies)
                self._published.append(len(bodies))

    @property
    def published(self) -> int:
        return sum(self._published)

    def is_done(self) -> bool:
        """Return True if all threads have ended. Raise the exception of a thread that failed."""
        if not all(future.done() for future in self._futures):
            return False
        for future in self._futures:
            future.result()
        self._seconds = self._seconds or time.monotonic() - self._began
        return True

    def __str__(self) -> str:
        threads, rate = counted(self._threads, "thread"), rate_of(self.published, self._seconds)
        return f"published {counted(self.published, 'line')} from {threads} in {rate}"


def rate_of(lines: int, seconds: float) -> str:
    """Return the time and the rate of that number of lines."""
    return f"{seconds:.2f} s: {rate_text(lines, seconds, 'lines')}"


def judge(total: int, arrivals: Iterable[int], files: str = "") -> int:
    """Print the verdict on the numbers of the lines that arrived. Return the exit code.

    0 stands for a body that nobody published. With ``files`` a line must not be there twice.
    """
    counts = Counter(arrivals)
    wrong = counts.pop(0, 0)
    missing = [number for number in range(1, total + 1) if number not in counts]
    repeated = sorted(number for number, count in counts.items() if count > 1)
    problems = [f"not what was published: {counted(wrong, 'message')}"] if wrong else []
    if repeated and not files:
        click.echo(f"delivered more than once, as NSQ may do: {counted(len(repeated), 'line')}")
        repeated = []
    for numbers, verb in ((missing, "did not arrive"), (repeated, "arrived more than once")):
        if numbers:
            more = f" and {len(numbers) - SHOWN:,} more" if numbers[SHOWN:] else ""
            shown = ", ".join(map(str, numbers[:SHOWN])) + more
            lines = f"{len(numbers):,} of {counted(total, 'line')}"
            problems.append(f"{lines} {verb}{files}: {shown}")
    for problem in problems:
        click.echo(f"gnsqsync: {problem}", err=True)
    if not problems:
        verb = f"is{files} exactly once" if files else "arrived"
        click.echo(f"every one of the {total:,} lines {verb}")
    return min(len(problems), 1)


def say_next(commands: Mapping[str, str]) -> int:
    """Print the commands to try now, as the last lines. Return the exit code, 0."""
    click.echo("what to do next, each in a terminal of its own:")
    for command, text in commands.items():
        click.echo(f"  {command.ljust(max(map(len, commands)))}  {text}")
    return 0
