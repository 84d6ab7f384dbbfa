"""``python -m tests.bench.spark.wide``: what a micro-batch costs with many nsqds and topics.

One program plays all nsqds (``tests/support/simulated.py``). It takes little CPU, so the figures
are of the query: its driver, its tasks and its log. Each size gets rounds of two batches in one
session, ``local[2]``: one message for each partition, which is all overhead, and many. Overhead is
a look at all nsqds and, as Spark reports them, the seconds of such a batch without the wait for its
messages. CPU is of all processes of the query, without the nsqds. Figures are medians of the
rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnsqsync.spark.depths import Depths
from gnsqsync.spark.open_store import open_store
from gnsqsync.spark.options import SourceOptions
from gnsqsync.spark.wal import Wal
from tests.spark import session
from tests.spark.nsqds import scratch
from tests.spark.processes import descendants, usage
from tests.support.simulated import ManyNsqds, Unavailable, program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

CHANNEL = "ch"
# The parts of a batch that Spark reports, in the order in which they happen.
PHASES = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets")


@dataclass(frozen=True)
class Batch:
    """One batch: its seconds in all and by phase, and CPU seconds by kind of process."""

    messages: int
    seconds: float
    phases: dict[str, float]
    cpu: dict[str, float]

    @property
    def cpu_seconds(self) -> float:
        return sum(self.cpu.values())


@dataclass
class Size:
    """What was measured of one size."""

    nsqds: int
    topics: int
    silent: int
    small: list[Batch] = field(default_factory=list)
    large: list[Batch] = field(default_factory=list)
    look: float = 0.0  # seconds of a look at all nsqds
    look_cpu: float = 0.0
    objects: float = 0.0  # made in the log by a batch of one message a partition
    listing: float = 0.0  # seconds for the names of the whole log
    names: int = 0
    driver_memory: int = 0  # bytes; the process of the source
    java_memory: int = 0  # bytes
    idle_cpu: float = 0.0  # cores, without the nsqds
    idle_driver: float = 0.0  # of it the process of the source

    @property
    def partitions(self) -> int:
        return (self.nsqds - self.silent) * self.topics

    def overhead(self) -> float:
        """Seconds of a batch that has almost no messages; latestOffset waits for them."""
        rest = (batch.seconds - batch.phases["latestOffset"] for batch in self.small)
        return self.look + statistics.median(rest)

    def phase(self, name: str) -> float:
        return statistics.median(batch.phases[name] for batch in self.small)

    def cpu_of_overhead(self) -> float:
        return statistics.median(batch.cpu_seconds for batch in self.small)

    def cpu_a_message(self) -> float:
        """All of a large batch, its overhead included."""
        return statistics.median(batch.cpu_seconds / batch.messages for batch in self.large)

    def cpu_of_one_more(self) -> float:
        """What a message costs beyond the overhead: of a large batch against a small one."""
        return statistics.median(
            (large.cpu_seconds - small.cpu_seconds) / (large.messages - small.messages)
            for small, large in zip(self.small, self.large, strict=True)
        )


class Wide:
    """One query over so many simulated nsqds and topics."""

    def __init__(self, spark: SparkSession, folder: Path, size: Size, options: Any) -> None:
        self._spark = spark
        self._folder = folder
        self._size = size
        self._options = options
        self._topics = [f"wide-{number}" for number in range(size.topics)]

    def run(self) -> None:
        size, options = self._size, self._options
        with ManyNsqds(size.nsqds, silent=size.silent) as many:
            for topic in self._topics:
                many.create(topic, CHANNEL)
            query = self._start(many)
            try:
                for number in range(options.rounds + 1):
                    before = self._names()
                    small = self._batch(query, many, 1)
                    made = len(self._names() - before)
                    large = self._batch(query, many, options.messages)
                    # The first round is thrown away.
                    if number:
                        size.small.append(small)
                        size.large.append(large)
                        size.objects = made
                self._look_at_nsqds(many)
                self._look_at_log()
                self._look_at_memory()
                self._idle(options.idle)
            finally:
                query.stop()
            counts = many.counts()
            # What the silent ones have cannot be seen.
            per_channel = (1 + options.messages) * (options.rounds + 1)
            unseen = size.silent * size.topics * per_channel
            if counts["waiting"] != unseen or counts["refused"]:
                raise RuntimeError(f"not every message was finished once: {counts}")

    def _start(self, many: ManyNsqds) -> StreamingQuery:
        return (
            self._spark.readStream.format("nsq")
            .options(lookupdHttpAddresses=many.lookupd, subscribe=",".join(self._topics))
            .options(channel=CHANNEL, **self._options.option)
            .option("walPath", self._log)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .start()
        )

    @property
    def _log(self) -> str:
        return str(self._folder / "nsq-wal")

    def _names(self) -> set[str]:
        return set(open_store(self._log).list())

    def _batch(self, query: StreamingQuery, many: ManyNsqds, messages: int) -> Batch:
        """Messages for each partition, until the query has them all; it may take several batches,
        as they do not come at one moment."""
        seen: Any = query.lastProgress
        last = -1 if seen is None else seen["batchId"]
        wanted = messages * self._size.partitions
        before = self._cpu()
        for topic in self._topics:
            many.fill(topic, messages)
        query.processAllAvailable()
        after = self._cpu()
        found: list[Any] = [
            p for p in query.recentProgress if p["batchId"] > last and p["numInputRows"]
        ]
        rows = sum(p["numInputRows"] for p in found)
        if rows != wanted:
            raise RuntimeError(f"{rows} rows of {wanted}: {query.exception()}")
        return Batch(
            messages=wanted,
            seconds=sum(p["durationMs"]["triggerExecution"] for p in found) / 1e3,
            phases={
                name: sum(p["durationMs"].get(name, 0) for p in found) / 1e3 for name in PHASES
            },
            cpu=_used(before, after),
        )

    def _cpu(self) -> dict[int, float]:
        """CPU seconds of each process that Spark has now."""
        return {pid: used.cpu for pid, used in usage(descendants(os.getpid())).items()}

    def _look_at_nsqds(self, many: ManyNsqds) -> None:
        """As the driver does before each batch, in this process."""
        texts = {
            "lookupdHttpAddresses": many.lookupd,
            "subscribe": ",".join(self._topics),
            "channel": CHANNEL,
            "walPath": self._log,
        }
        depths = Depths(SourceOptions.parse(texts, streaming=True))
        walls, cpus = [], []
        try:
            depths.start()
            for _ in range(5):
                began, used = time.monotonic(), time.process_time()
                depths.look()
                walls.append(time.monotonic() - began)
                cpus.append(time.process_time() - used)
        finally:
            depths.close()
        self._size.look, self._size.look_cpu = map(statistics.median, (walls, cpus))

    def _look_at_log(self) -> None:
        wal = Wal(open_store(self._log), next(iter(self._names())).split("/")[0])
        began = time.monotonic()
        self._size.names = len(wal.names())
        self._size.listing = time.monotonic() - began

    def _look_at_memory(self) -> None:
        for pid, used in usage(descendants(os.getpid())).items():
            if _kind(pid) == "driver":
                self._size.driver_memory = max(self._size.driver_memory, used.memory)
            elif _kind(pid) == "java":
                self._size.java_memory = used.memory

    def _idle(self, seconds: float) -> None:
        before = self._cpu()
        time.sleep(seconds)
        after = self._cpu()
        used = {kind: cpu / seconds for kind, cpu in _used(before, after).items()}
        self._size.idle_cpu = sum(used.values())
        self._size.idle_driver = used.get("driver", 0.0)


def _used(before: dict[int, float], after: dict[int, float]) -> dict[str, float]:
    """CPU seconds by kind of process; the nsqds are a child of ours, too, and left out."""
    found: dict[str, float] = {}
    for pid, cpu in after.items():
        kind = _kind(pid)
        if kind:
            found[kind] = found.get(kind, 0.0) + cpu - before.get(pid, 0.0)
    return found


def _kind(pid: int) -> str:
    """What a process is to the query: java, driver (the source's), workers; "" for none."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
    if "manynsqs" in command:
        return ""
    if "streaming_source_runner" in command:
        return "driver"
    return "java" if "java" in command.split(" ")[0] else "workers"


HEADS = (
    ("nsqds", lambda s: f"{s.nsqds}" + (f" ({s.silent} silent)" if s.silent else "")),
    ("topics", lambda s: f"{s.topics}"),
    ("partitions", lambda s: f"{s.partitions}"),
    ("overhead s", lambda s: f"{s.overhead():.2f}"),
    ("look s", lambda s: f"{s.look:.2f}"),
    ("planning", lambda s: f"{s.phase('getBatch') + s.phase('queryPlanning'):.2f}"),
    ("addBatch", lambda s: f"{s.phase('addBatch'):.2f}"),
    ("Spark's log", lambda s: f"{s.phase('walCommit') + s.phase('commitOffsets'):.2f}"),
    ("CPU s", lambda s: f"{s.cpu_of_overhead():.2f}"),
    ("CPU us/msg", lambda s: f"{1e6 * s.cpu_a_message():.2f}"),
    ("one more", lambda s: f"{1e6 * s.cpu_of_one_more():.2f}"),
    ("objects", lambda s: f"{s.objects:.0f}"),
    ("list s", lambda s: f"{s.listing:.2f} of {s.names}"),
    ("driver MB", lambda s: f"{s.driver_memory / 1e6:.0f}"),
    ("JVM MB", lambda s: f"{s.java_memory / 1e6:.0f}"),
    ("idle cores", lambda s: f"{s.idle_cpu:.3f} ({s.idle_driver:.3f})"),
)


def _size(text: str) -> Size:
    """``200x5`` is 200 nsqds with 5 topics, ``200x5-20`` the same with 20 that are silent."""
    wide, _, silent = text.partition("-")
    nsqds, _, topics = wide.partition("x")
    return Size(int(nsqds), int(topics or 1), int(silent or 0))


def _option(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, or 2 when it cannot run."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spark.wide", description=__doc__)
    parser.add_argument(
        "sizes", nargs="*", type=_size, help="as 200x5: nsqds x topics; 200x5-20: 20 are silent"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=500, help="a partition, in a large batch")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds that it is idle")
    parser.add_argument(
        "--option", type=_option, action="append", default=[], help="of the source, name=value"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    chosen = parser.parse_args(argv)
    chosen.option = dict(chosen.option)
    sizes = chosen.sizes or [_size(text) for text in ("10x1", "50x1", "100x1", "200x1", "200x5")]
    try:
        session.require()
        program()
    except (session.Unavailable, Unavailable) as error:
        print(error, file=sys.stderr)
        return 2
    with scratch("wide") as folder:
        spark = session.start(Path(folder), "local[2]")
        try:
            print("  ".join(head for head, _ in HEADS))
            for number, size in enumerate(sizes):
                Wide(spark, Path(folder) / str(number), size, chosen).run()
                cells = [f"{show(size):>{len(head)}}" for head, show in HEADS]
                print("  ".join(cells), flush=True)
        finally:
            session.stop(spark)
    print(f"load average {os.getloadavg()[0]:.1f}")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([asdict(size) for size in sizes], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
