"""``gnsqsync demo --spark``: three embedded nsqds, the archive job, a SIGKILL, and a count.

Starts the archive job, kills a worker, and counts the lines in the files. demo_lines publishes for
both demos, and demo_spark_view draws.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import click

from gnsqsync import NsqdHTTP
from gnsqsync.cli.common import rate_text
from gnsqsync.cli.demo_lines import (
    NEXT_WITH_SPARK,
    TOPIC,
    Publishers,
    Verdict,
    numbers_text,
    read_lines,
    say_next,
    start_servers,
    verify,
)
from gnsqsync.cli.demo_spark_setup import PICTURE, clean, require, settings, working_folder
from gnsqsync.cli.demo_spark_stop import EndAtOnce
from gnsqsync.cli.demo_spark_view import NsqdRow, View, make_view
from gnsqsync.cli.spark_options import job_session, spark_errors
from gnsqsync.embedded import Nsqd, Nsqlookupd
from gnsqsync.stats import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from gnsqsync.spark.jobs.batches import Counts

CHANNEL = "archive"
MESSAGES = 200_000
# Lower bound of lines. Fewer ones would be archived before there is a worker to kill.
AT_LEAST = 1000
NSQDS = 3
# Seconds for publishing, so that Spark reads meanwhile; and a factor by which publishing is slower
# until the end of Spark's first batch, which takes the longest.
PUBLISHING = 15.0
SLOWER = 10
# Share of the lines after which a worker is killed, and share that is held back until then.
DEATH_AT = 0.4
HELD_BACK = 0.5
# Seconds for which a worker stays stopped (SIGSTOP) until an nsqd has sent messages to it, at most.
STOPPED_SECONDS = 1.0
# Seconds until nsqd delivers the dead worker's messages again.
MSG_TIMEOUT = 6.0
# Seconds without progress after which the remaining lines count as missing.
PATIENCE = 60.0
# Seconds between two requests for the nsqds' figures.
ASK_INTERVAL = 0.5


def run(file: str | None, messages: int | None, publishers: int, keep: str | None, v: bool) -> int:
    """Run the whole demo. Return the exit code. ``v``: with Spark's own log."""
    total = MESSAGES if messages is None else messages
    if total < AT_LEAST:
        raise click.UsageError(f"--spark needs --messages {AT_LEAST} or more")
    require()
    lines = read_lines(file, total)
    began = time.monotonic()
    with ExitStack() as stack:
        folder = stack.enter_context(working_folder(keep))
        stack.enter_context(EndAtOnce(lambda: clean(folder, keep, stopped=True)))
        if not v:
            # Ctrl-C ends the nsqds, too, and the Writers would log that.
            library = logging.getLogger("gnsqsync")
            stack.callback(library.setLevel, library.level)
            library.setLevel(logging.ERROR)
        servers: list[Nsqd | Nsqlookupd] = []
        lookupd, nsqds = start_servers(stack, servers, NSQDS, CHANNEL)
        click.echo("starting Spark")
        session = job_session("gnsqsync demo", settings(folder, NSQDS), verbose=v)
        # On the main thread PySpark would replace our signal handler by its own, which prints a
        # lot.
        with ThreadPoolExecutor(1) as pool:
            spark = pool.submit(stack.enter_context, session).result()
        stack.enter_context(spark_errors(v))
        demo = Demo(spark, lookupd, nsqds, folder, lines, publishers)
        demo.archive()
        code = demo.count()
        if code == 0:
            demo.draw()
            click.echo(f"done in {time.monotonic() - began:.0f} s")
            if keep is not None:
                click.echo(f"archive:  {demo.path}")
            click.echo(f"picture:  {demo.picture}")
            say_next(NEXT_WITH_SPARK)
    return code


class Death:
    """The SIGKILL of a worker of Spark that holds messages.

    A worker holds messages for moments only. So a connected worker is stopped (SIGSTOP), and killed
    after an nsqd has sent messages to it.
    """

    def __init__(self) -> None:
        self.is_due: bool = False
        self.pid: int | None = None
        # The pid of the stopped worker, and the monotonic time until which it stays stopped.
        self._stopped: int | None = None
        self._until = 0.0

    @property
    def is_wanted(self) -> bool:
        """True while ``strike`` must be called."""
        return self.is_due and self.pid is None

    def strike(self, clients: Iterable[NsqdHTTP]) -> bool:
        """Take the next step. Call this until it returns True: then a worker has been killed."""
        holding = self._holding(clients)
        if self._stopped is None:
            for pid in holding:
                if _signal(pid, signal.SIGSTOP):
                    self._stopped, self._until = pid, time.monotonic() + STOPPED_SECONDS
                    break
        elif holding.get(self._stopped) and _signal(self._stopped, signal.SIGKILL):
            self.pid, self._stopped = self._stopped, None
            return True
        elif time.monotonic() > self._until:
            # The worker had not asked for messages yet.
            self.release()
        return False

    def release(self) -> None:
        """Continue the stopped worker, if any."""
        if self._stopped is not None:
            _signal(self._stopped, signal.SIGCONT)
            self._stopped = None

    def _holding(self, clients: Iterable[NsqdHTTP]) -> dict[int, int]:
        """Return pid -> number of messages in flight, for each connected worker."""
        holding: Counter[int] = Counter()
        for nsqd in clients:
            for topic in nsqd.stats(TOPIC, CHANNEL, include_mem=False).topics:
                for client in [c for channel in topic.channels for c in channel.clients]:
                    # The source's tasks put their pid into the client_id.
                    pid = client.client_id.removeprefix("spark-")
                    if pid.isdecimal():
                        holding[int(pid)] += client.in_flight_count
        return holding


def _signal(pid: int, number: signal.Signals) -> bool:
    """Send the signal. Return False if the process has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


class PacedPublishers(Publishers):
    """Publishers that are slow until ``hurry``. The last lines wait until ``may_end`` is true."""

    def __init__(
        self, lines: Sequence[bytes], addresses: list[str], count: int, may_end: Callable[[], bool]
    ) -> None:
        super().__init__(lines, addresses, count)
        self._may_end = may_end
        # Monotonic time of the first line at the present pace, and seconds for all lines.
        self._plan = 0.0, PUBLISHING * SLOWER

    def start(self) -> None:
        self._plan = time.monotonic(), PUBLISHING * SLOWER
        super().start()

    def hurry(self) -> None:
        """Publish at the pace of all lines in ``PUBLISHING`` seconds from now on. Idempotent."""
        now = time.monotonic()
        began, seconds = self._plan
        if seconds > PUBLISHING:
            self._plan = now - PUBLISHING * (now - began) / seconds, PUBLISHING

    def _wait(self, place: int) -> bool:
        share = place / len(self._lines)
        while not self._stop.is_set():
            began, seconds = self._plan
            left = began + seconds * share - time.monotonic()
            if left <= 0 and (share < 1 - HELD_BACK or self._may_end()):
                return True
            self._stop.wait(min(max(left, 0.02), 0.1))
        return False


class Demo:
    """A run on servers and a session that exist: archive, count and draw, in this order."""

    def __init__(
        self,
        spark: SparkSession,
        lookupd: Nsqlookupd,
        nsqds: Sequence[Nsqd],
        folder: str,
        lines: Sequence[bytes],
        publishers: int,
    ) -> None:
        self.path: str = os.path.join(folder, "archive")
        self.picture: str = os.path.join(folder, PICTURE)
        self._rollup = os.path.join(folder, "rollup")
        self._spark = spark
        self._lookupd = lookupd
        self._nsqds = nsqds
        self._lines = lines
        self._threads = publishers
        self._death = Death()
        self._archived = self._batches = self._again = 0

    def archive(self) -> None:
        """Publish all lines and archive those that arrive."""
        from gnsqsync.spark.jobs.archive import archive

        addresses = [nsqd.tcp_address for nsqd in self._nsqds]
        sender = PacedPublishers(self._lines, addresses, self._threads, lambda: self._death.is_due)
        with ExitStack() as stack:
            stack.callback(sender.close)
            query = archive(
                self._spark,
                TOPIC,
                self.path,
                channel=CHANNEL,
                options={
                    "lookupdHttpAddresses": self._lookupd.http_address,
                    "msgTimeoutMs": str(round(MSG_TIMEOUT * 1000)),
                },
                interval=0.0,
                on_batch=self._note,
            )
            stack.callback(query.stop)
            stack.callback(self._death.release)
            clients = {
                nsqd.tcp_address: stack.enter_context(closing(NsqdHTTP(nsqd.http_address)))
                for nsqd in self._nsqds
            }
            view = stack.enter_context(make_view(len(self._lines)))
            began = time.monotonic()
            sender.start()
            self._watch(query, sender, clients, view)
            # A copy that came late must be in a batch before the count.
            query.processAllAvailable()
            rows = [ask(address, client) for address, client in clients.items()]
            self._again = sum(row.timed_out for row in rows)
            view.show(sender.published, self._archived, self._batches, rows)
            seconds = time.monotonic() - began
        click.echo(
            f"published {counted(sender.published, 'line')} from"
            f" {counted(self._threads, 'thread')} in"
            f" {sender.seconds:.1f} s: {rate_text(sender.published, sender.seconds, 'lines')}"
        )
        click.echo(
            f"archived  {self._archived:,} lines in {self._batches} batches in {seconds:.1f} s:"
            f" {rate_text(self._archived, seconds, 'lines')}"
        )

    def _note(self, counts: Counts) -> None:
        self._archived, self._batches = counts.rows, counts.batches

    def _watch(
        self,
        query: StreamingQuery,
        sender: PacedPublishers,
        clients: Mapping[str, NsqdHTTP],
        view: View,
    ) -> None:
        """Show progress and have a worker killed, until the nsqds have nothing left."""
        total = len(self._lines)
        rows: list[NsqdRow] = []
        last, last_change, next_question = (-1, -1), time.monotonic(), 0.0
        pause = 0.1
        while not query.awaitTermination(pause):
            done, now = sender.is_done(), time.monotonic()
            progress = sender.published, self._archived
            if progress != last:
                last, last_change = progress, now
            if now >= next_question:
                next_question = now + ASK_INTERVAL
                rows = [ask(address, client) for address, client in clients.items()]
            view.show(*progress, self._batches, rows)
            if self._archived:
                sender.hurry()
                self._death.is_due = sender.published >= total * DEATH_AT
                # The pause is short, because a worker is connected for moments only.
                pause = 0.01 if self._death.is_wanted else 0.1
            if self._death.is_wanted and self._death.strike(clients.values()):
                view.say(
                    f"SIGKILL: Spark's worker {self._death.pid} is dead, with messages in its hands"
                    f" that nsqd will deliver again in {MSG_TIMEOUT:.0f} s"
                )
            left = sum(nsqd.waiting + nsqd.in_flight for nsqd in rows)
            if (done and self._archived >= total and not left) or now - last_change > PATIENCE:
                return

    def count(self) -> int:
        """Count the lines in the Parquet files, without Spark. Return the exit code."""
        click.echo("reading the Parquet files and counting")
        verdict = count(self.path, self._lines)
        if self._again:
            click.echo(f"nsqd delivered {self._again:,} lines again, as nobody had finished them")
        return report(verdict, len(self._lines))

    def draw(self) -> None:
        """Make the rollup of the archive, and its picture."""
        from gnsqsync.spark.jobs.report import report as draw
        from gnsqsync.spark.jobs.rollup import rollup

        click.echo("rolling up by second, and drawing")
        rollup(self._spark, self.path, self._rollup, window=1)
        draw(
            self._rollup,
            self.picture,
            title=f"gnsqsync demo: {len(self._lines):,} messages, one worker killed",
        )


def ask(address: str, client: NsqdHTTP) -> NsqdRow:
    """Return the figures of the archive's channel on one nsqd."""
    (topic,) = client.stats(TOPIC, CHANNEL, include_clients=False, include_mem=False).topics
    (channel,) = topic.channels
    waiting = channel.depth + channel.deferred_count
    return NsqdRow(
        address,
        waiting,
        channel.in_flight_count,
        channel.message_count - waiting - channel.in_flight_count,
        channel.timeout_count,
    )


def count(path: str, lines: Sequence[bytes]) -> Verdict:
    """Compare the rows of the files below ``path`` with the lines."""
    from pyarrow import dataset

    arrivals: list[int] = []
    wrong = 0
    rows = dataset.dataset(path, format="parquet", ignore_prefixes=["_", "."])
    for batch in rows.to_batches(columns=["value"]):
        for body in batch.column("value").to_pylist():
            number_text, _, line = body.partition(b"\t")
            number = int(number_text) if number_text.isdigit() else 0
            if 1 <= number <= len(lines) and lines[number - 1] == line:
                arrivals.append(number)
            else:
                wrong += 1
    return verify(len(lines), arrivals, wrong)


def report(verdict: Verdict, total: int) -> int:
    """Print the verdict: every line must be there exactly once. Return the exit code."""
    if verdict.wrong:
        click.echo(f"gnsqsync: {verdict.wrong} rows are not what was published", err=True)
    for numbers, what in (
        (verdict.missing, "missing in the Parquet files"),
        (verdict.repeated, "there more than once"),
    ):
        if numbers:
            are = "is" if len(numbers) == 1 else "are"
            click.echo(
                f"gnsqsync: {len(numbers):,} of {total:,} lines {are} {what}:"
                f" {numbers_text(numbers)}",
                err=True,
            )
    if not verdict.good or verdict.repeated:
        return 1
    click.echo(f"every one of the {total:,} lines is in the Parquet files exactly once")
    return 0
