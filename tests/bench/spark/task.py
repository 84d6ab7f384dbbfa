"""``python -m tests.bench.spark.task``: where the time of a read task goes, without Spark.

One task reads a channel of a played nsqd (``tests/support/simulated.py``) into a log on this disk,
in turns with the same on a bare socket without a log. CPU is what the machine's other work disturbs
least; wall shows the waits. Each part counts the thread that runs the task; what the other threads
of the client take is a line of its own. Figures are medians, in microseconds a message.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from gnsqsync.spark.intake import Intake
from gnsqsync.spark.read_plan import PartitionPlan, ReadSettings
from gnsqsync.spark.read_task import read_partitions
from gnsqsync.spark.rows import SCHEMA, Entry
from gnsqsync.spark.stores import FileStore
from gnsqsync.spark.wal import Wal
from tests.bench.spark.raw import consume
from tests.support.realnsq import Unavailable
from tests.support.simulated import ManyNsqds

TOPIC, CHANNEL = "task", "ch"
# The parts in their order: what is wrapped, and its title.
PARTS: tuple[tuple[type, str, str], ...] = (
    (Intake, "reach", "connecting and SUB"),
    (Intake, "collect", "waiting for and taking messages"),
    (Entry, "of", "messages to Arrow"),
    (Entry, "encode", "Arrow to bytes, LZ4"),
    (FileStore, "create", "writing the log, fsync"),
    (Intake, "finish_hand", "FIN"),
    (Intake, "__exit__", "CLS and closing"),
    (Entry, "batch", "columns for Spark"),
)


class Spent(NamedTuple):
    """Seconds."""

    cpu: float
    wall: float


class Clock:
    """Notes what the calls of PARTS take, without what others of them take inside."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, Spent] = defaultdict(lambda: Spent(0.0, 0.0))
        self._inside: list[Spent] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        usual = [(owner, name, owner.__dict__[name]) for owner, name, _ in PARTS]
        for (owner, name, function), (_, _, title) in zip(usual, PARTS, strict=True):
            if isinstance(function, classmethod):
                setattr(owner, name, classmethod(self._timed(function.__func__, title)))
            else:
                setattr(owner, name, self._timed(function, title))
        try:
            yield
        finally:
            for owner, name, function in usual:
                setattr(owner, name, function)

    def _timed(self, function: Callable[..., Any], title: str) -> Callable[..., Any]:
        def timed(*args: Any, **keywords: Any) -> Any:
            self._inside.append(Spent(0.0, 0.0))
            cpu, wall = time.thread_time(), time.monotonic()
            try:
                return function(*args, **keywords)
            finally:
                whole = Spent(time.thread_time() - cpu, time.monotonic() - wall)
                inside = self._inside.pop()
                own = Spent(whole.cpu - inside.cpu, whole.wall - inside.wall)
                self.spent[title] = _sum(self.spent[title], own)
                if self._inside:
                    self._inside[-1] = _sum(self._inside[-1], whole)

        return timed


def _sum(first: Spent, second: Spent) -> Spent:
    return Spent(first.cpu + second.cpu, first.wall + second.wall)


def measured(call: Callable[[], int], messages: int) -> tuple[Spent, float]:
    """What a call that reads takes in all, and its CPU on threads but this one."""
    own, cpu, wall = time.thread_time(), time.process_time(), time.monotonic()
    rows = call()
    whole = Spent(time.process_time() - cpu, time.monotonic() - wall)
    if rows != messages:
        raise RuntimeError(f"{rows} rows of {messages}")
    return whole, whole.cpu - (time.thread_time() - own)


def rounds(many: ManyNsqds, folder: str, chosen: argparse.Namespace) -> list[dict[str, Spent]]:
    """For each round the parts, ``ours`` and ``bare socket``; a first round is thrown away."""
    messages, (nsqd, *_) = chosen.messages, many.tcp_addresses
    many.create(TOPIC, CHANNEL)
    # A busy machine may keep nsqd waiting for longer than the default.
    settings = ReadSettings(os.path.join(folder, "wal"), poll_timeout=10.0)
    Wal(FileStore(settings.wal_path), "task").announce()
    found = []
    for number in range(chosen.rounds + 1):
        plan = PartitionPlan("task", number, 0, TOPIC, CHANNEL, nsqd, messages)
        clock = Clock()
        many.fill(TOPIC, messages)
        with clock.watching():
            batches = read_partitions([plan], settings, SCHEMA.names)
            ours, others = measured(lambda b=batches: sum(x.num_rows for x in b), messages)
        many.fill(TOPIC, messages)
        batches = consume(nsqd, TOPIC, CHANNEL, messages)
        bare, _ = measured(lambda b=batches: sum(x.num_rows for x in b), messages)
        parts = {title: clock.spent[title] for _, _, title in PARTS}
        parts["the client's reading thread and timers"] = Spent(others, 0.0)
        known = sum(spent.cpu for spent in parts.values())
        waited = sum(spent.wall for spent in parts.values())
        parts["the rest"] = Spent(ours.cpu - known, ours.wall - waited)
        found.append({**parts, "ours": ours, "bare socket": bare})
    return found[1:]


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 when it cannot run."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spark.task", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000, help="a round")
    parser.add_argument("--size", type=int, default=100, help="bytes of a body")
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args(argv)
    try:
        many = ManyNsqds(1, size=chosen.size)
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 2
    with many, tempfile.TemporaryDirectory(prefix="gnsqsync-task-") as folder:
        found = rounds(many, folder, chosen)
    print(f"{'':<40}  {'CPU us':>7}  {'wall us':>8}")
    for title in found[0]:
        cpu, wall = (
            statistics.median(parts[title][n] / chosen.messages * 1e6 for parts in found)
            for n in (0, 1)
        )
        print(f"{title:<40}  {cpu:7.2f}  {wall:8.2f}")
    shares = [parts["bare socket"].cpu / parts["ours"].cpu for parts in found]
    print(f"CPU of a bare socket / of ours: {statistics.median(shares):.2f}")
    print(f"load average {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
