"""``python -m tests.spark.kills``: archive numbered messages under kill -9, then count them.

Real nsqds, a publisher that numbers every message, and the archive job as its own tree of
processes: JVM, the driver's Python, daemon and workers. The whole tree gets SIGKILL at random
moments and is started again. In the end every number must be in the archive exactly once. The exit
status is 1 when one is missing or there twice.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from gnsqsync import Writer
from gnsqsync.spark.jobs import parquet
from gnsqsync.spark.jobs.layout import FORMATS, Place, is_data
from tests.bench import progress as progress_kinds
from tests.bench.progress import Progress
from tests.spark import maven, session
from tests.spark.nsqds import Cluster, OwnCluster, number_of, numbered, scratch
from tests.spark.processes import Family
from tests.support.s3 import BUCKET, S3
from tests.support.s3 import running as running_s3

TOPIC, CHANNEL = "numbers", "archive"
BODY = 100
START_TIMEOUT = 120.0
END_TIMEOUT = 300.0
# A life is ended at most so long after its first message; it takes about 10 s to get there.
LONGEST_LIFE = 6.0
# The archive is complete when it has not grown for so long.
SETTLED = 60.0


@dataclass(frozen=True)
class Plan:
    """What a campaign does."""

    messages: int
    kills: int
    seed: int
    workers_survive: bool = False
    s3: bool = False
    format: str = "parquet"
    nsqds: int = 3
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Life:
    """One run of the job: seconds from its start, and the counts at its end."""

    number: int
    first_message: float | None
    ended: float
    how: str
    processes: int
    published: int
    in_nsqd: int


@dataclass(frozen=True)
class Report:
    """How a campaign went. ``missing`` and ``twice``: the first few such numbers."""

    plan: Plan
    lives: list[Life]
    rows: int
    distinct: int
    missing: list[int]
    twice: list[int]
    seconds: float

    @property
    def is_right(self) -> bool:
        return self.rows == self.distinct == self.plan.messages

    def __str__(self) -> str:
        head = ("life", "first message", "ended", "how", "processes", "published", "in nsqd")
        table = [head] + [
            (
                str(life.number),
                "-" if life.first_message is None else f"{life.first_message:.1f} s",
                f"{life.ended:.1f} s",
                life.how,
                str(life.processes),
                f"{life.published:,}",
                f"{life.in_nsqd:,}",
            )
            for life in self.lives
        ]
        widths = [max(len(row[i]) for row in table) for i in range(len(head))]
        lines = ["  ".join(c.rjust(w) for c, w in zip(r, widths, strict=True)) for r in table]
        lines.append("")
        lines.append(
            f"{self.plan.messages:,} messages, {self.plan.kills} kills, seed {self.plan.seed},"
            f" {self.seconds:.0f} s: {self.rows:,} rows in the archive,"
            f" {self.plan.messages - self.distinct:,} lost, {self.rows - self.distinct:,} twice"
        )
        if self.missing:
            lines.append(f"lost: {', '.join(map(str, self.missing))} ...")
        if self.twice:
            lines.append(f"twice: {', '.join(map(str, self.twice))} ...")
        return "\n".join(lines)


class Publisher:
    """Publishes the numbers from 0 on to all nsqds in turn, as far as it is allowed, paced."""

    def __init__(self, cluster: Cluster, messages: int, topic: str = TOPIC) -> None:
        self.published = 0
        self.error: BaseException | None = None
        self._topic = topic
        self._messages = messages
        self._allowed = 0
        self._rate = 1.0
        self._changed = threading.Condition()
        self._writer = Writer(cluster.tcp_addresses)
        self._writer.connect()
        self._thread = threading.Thread(target=self._run, name="publisher")
        self._thread.start()

    def allow(self, share: float, seconds: float) -> None:
        """Go on to this share of all numbers, and take about that long."""
        with self._changed:
            self._allowed = round(self._messages * share)
            self._rate = max(1.0, (self._allowed - self.published) / seconds)
            self._changed.notify()

    @property
    def is_at_rest(self) -> bool:
        """Whether all that is allowed is published."""
        return self.published == self._allowed

    def close(self) -> None:
        with self._changed:
            self._messages = self._allowed = self.published
            self._changed.notify()
        self._thread.join()
        self._writer.close()

    def _run(self) -> None:
        try:
            self._publish()
        except BaseException as error:
            self.error = error

    def _publish(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self.published < self._allowed or self.published == self._messages
                )
                if self.published == self._messages:
                    return
                end = min(self._allowed, self.published + 500)
                pause = (end - self.published) / self._rate
            self._writer.publish_many(self._topic, numbered(range(self.published, end), BODY))
            self.published = end
            time.sleep(pause)


class Campaign:
    """One run: the servers, the publisher and the lives of the job."""

    def __init__(
        self,
        plan: Plan,
        cluster: Cluster,
        folder: Path,
        progress: Progress,
        server: S3 | None = None,
    ) -> None:
        self._plan = plan
        self._cluster = cluster
        self._folder = folder
        self._progress = progress
        self._chance = random.Random(plan.seed)
        self._log = folder / "job.log"
        self._options = [*plan.options]
        self._environment = session.environment()
        if plan.format == "delta":
            import pyspark

            self._environment |= maven.environment(pyspark.__version__)
        self._archive = Place(str(folder / "archive"))
        if server is not None:
            self._archive = Place(f"s3://{BUCKET}/archive", server.options)
            self._options.append(f"walPath=s3://{BUCKET}/log")
            self._environment |= server.environment

    def run(self) -> Report:
        began = time.monotonic()
        plan = self._plan
        lives: list[Life] = []
        self._progress.total(plan.kills + 1)
        self._cluster.create(TOPIC, CHANNEL)
        self._publisher = publisher = Publisher(self._cluster, plan.messages)
        try:
            for number in range(1, plan.kills + 2):
                last = number == plan.kills + 1
                self._progress.begin(f"life {number} of {plan.kills + 1}")
                lives.append(self._life(number, last))
        finally:
            publisher.close()
        return self._report(lives, time.monotonic() - began)

    def _life(self, number: int, last: bool) -> Life:
        publisher = self._publisher
        began = time.monotonic()
        # Every fourth dies anywhere, mostly while Spark starts; the others at work.
        in_its_start = not last and number % 4 == 0
        share = number / (self._plan.kills + 1)
        family = self._start()
        first: float | None = None
        try:
            # Some wait for it, most come while it works.
            publisher.allow(share - 0.8 / (self._plan.kills + 1), 1.0)
            if in_its_start:
                publisher.allow(share, LONGEST_LIFE)
                time.sleep(self._chance.uniform(0.5, 12.0))
            else:
                first = self._wait_for_work(family) - began
                publisher.allow(share, LONGEST_LIFE / 2)
                if last:
                    self._wait_until_archived(family)
                else:
                    time.sleep(self._chance.uniform(0.0, LONGEST_LIFE))
            if last:
                processes, how = len(family.pids()), "SIGTERM"
                status = family.end(END_TIMEOUT)
                if status != 0:
                    raise RuntimeError(f"the job ended with {status}:\n{self._log_tail()}")
            elif self._plan.workers_survive:
                processes, how = family.kill_group(), "kill -9, workers live on"
            else:
                processes, how = family.kill(self._chance), "kill -9"
        except BaseException:
            family.kill(self._chance)
            raise
        finally:
            if last:
                family.kill(self._chance)
        ended = time.monotonic()
        self._wait_for_silence()
        return Life(
            number=number,
            first_message=first,
            ended=ended - began,
            how=how,
            processes=processes,
            published=publisher.published,
            in_nsqd=self._cluster.left(TOPIC, CHANNEL),
        )

    def _start(self) -> Family:
        command = [sys.executable, "-m", "tests.spark.archiving"]
        command += [self._plan.format, str(self._folder), self._archive.path]
        command += [self._cluster.lookupd, TOPIC, CHANNEL]
        return Family([*command, *self._options], self._environment, self._log)

    def _wait_for_work(self, family: Family) -> float:
        """Until a task of this life is connected to an nsqd, or has been; the time."""

        def works() -> bool:
            # A small batch may come and go between two looks.
            return self._cluster.clients() > 0 or (
                self._publisher.is_at_rest and self._cluster.left(TOPIC, CHANNEL) == 0
            )

        self._wait(family, START_TIMEOUT, works)
        return time.monotonic()

    def _wait_for_silence(self) -> None:
        """Until nsqd has seen that all tasks of a dead life are gone."""
        deadline = time.monotonic() + START_TIMEOUT
        while self._cluster.clients():
            if time.monotonic() > deadline:
                raise RuntimeError("a task of a life that was killed reads on and on")
            time.sleep(0.02)

    def _wait_until_archived(self, family: Family) -> None:
        """Until the archive holds as many rows as were published, or grows no more."""
        self._wait(family, END_TIMEOUT, lambda: self._publisher.published == self._plan.messages)
        self._wait(family, END_TIMEOUT, lambda: self._cluster.left(TOPIC, CHANNEL) == 0)
        seen, since = -1, time.monotonic()
        while seen < self._plan.messages and time.monotonic() - since < SETTLED:
            rows = count(self._archive)
            if rows != seen:
                seen, since = rows, time.monotonic()
            time.sleep(0.2)

    def _wait(self, family: Family, timeout: float, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            if self._publisher.error is not None:
                raise self._publisher.error
            status = family.process.poll()
            if status is not None or time.monotonic() > deadline:
                state = "did not come that far" if status is None else f"ended with {status}"
                counts = (
                    f"{self._publisher.published} published, {self._cluster.depths(TOPIC, CHANNEL)}"
                )
                raise RuntimeError(f"the job {state}; {counts}:\n{self._log_tail()}")
            # Neither nsqd nor the job has an event for us.
            time.sleep(0.05)

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-6000:]

    def _report(self, lives: list[Life], seconds: float) -> Report:
        times = bytearray(self._plan.messages)
        rows = 0
        for number in numbers(self._archive):
            rows += 1
            times[number] = min(255, times[number] + 1)
        return Report(
            plan=self._plan,
            lives=lives,
            rows=rows,
            distinct=self._plan.messages - times.count(0),
            missing=[number for number, n in enumerate(times) if n == 0][:10],
            twice=[number for number, n in enumerate(times) if n > 1][:10],
            seconds=seconds,
        )


def count(archive: Place) -> int:
    """The rows of an archive, as anybody counts them; -1 while files are replaced."""
    store = archive.open()
    if maven.is_table(store):
        return maven.count(archive)
    try:
        return sum(parquet.count(store, name) for name in store.list() if is_data(name))
    except FileNotFoundError:
        return -1


def numbers(archive: Place) -> Iterator[int]:
    """The number in each row of an archive, in no order."""
    store = archive.open()
    if maven.is_table(store):
        yield from map(number_of, maven.values(archive))
        return
    for name in store.list():
        if is_data(name):
            with store.reading(name) as file:
                for batch in parquet.read(file, ["value"]):
                    yield from map(number_of, batch.column(0).to_pylist())


def run(plan: Plan, progress: Progress) -> Report:
    """One campaign with servers and files of its own. RuntimeError when the job itself fails."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(scratch("kills")))
        cluster = stack.enter_context(OwnCluster("real", plan.nsqds))
        server = stack.enter_context(running_s3(folder)) if plan.s3 else None
        return Campaign(plan, cluster, folder, progress, server).run()


def arguments(argv: Sequence[str] | None) -> Plan:
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.kills",
        description="Archive numbered messages under kill -9 of the whole job, then count them.",
    )
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--nsqds", type=int, default=3, help="with more than 16, tasks share them")
    parser.add_argument("--seed", type=int, help="of the moments; a new one by default")
    parser.add_argument(
        "--workers-survive",
        action="store_true",
        help="kill JVM and driver only: workers go on as zombies beside the next life",
    )
    parser.add_argument("--s3", action="store_true", help="archive and log on S3 (moto's server)")
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="parquet",
        help="delta: python -m tests.spark.maven has what that needs",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the source for the job; may be repeated",
    )
    chosen = parser.parse_args(argv)
    if chosen.messages < 1 or chosen.kills < 0:
        parser.error("--messages must be positive, --kills not negative")
    seed = random.SystemRandom().randrange(1 << 32) if chosen.seed is None else chosen.seed
    return Plan(
        chosen.messages,
        chosen.kills,
        seed,
        chosen.workers_survive,
        chosen.s3,
        chosen.format,
        chosen.nsqds,
        tuple(chosen.option),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 when something was lost or is there twice, 2 when it cannot run."""
    plan = arguments(argv)
    if not session.is_ready():
        return 2
    with progress_kinds.choose() as progress:
        progress.say(f"seed {plan.seed}")
        report = run(plan, progress)
    print(report)
    return 0 if report.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
