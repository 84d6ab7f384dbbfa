"""``gnsqsync demo --spark``: three embedded nsqds, the archive job, a SIGKILL, and a count.

Knows Spark's steps and processes. demo_parts publishes and judges.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import click

from gnsqsync import NsqdHTTP
from gnsqsync.cli import demo_parts as parts
from gnsqsync.cli.progress import Figures
from gnsqsync.cli.spark_needs import need_java, need_packages, need_target
from gnsqsync.cli.spark_options import job_session, spark_errors
from gnsqsync.cluster.totals import channel_total
from gnsqsync.embedded import Nsqd
from gnsqsync.errors import ConfigError
from gnsqsync.process.descendants import kill_descendants
from gnsqsync.process.signals import ending, handled
from gnsqsync.spark.jobs.archive import archive
from gnsqsync.spark.jobs.batches import Counts
from gnsqsync.spark.jobs.common import local_path
from gnsqsync.spark.jobs.report import report
from gnsqsync.spark.jobs.rollup import rollup

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

CHANNEL = "archive"
# Names in the folder of --keep.
KEPT = "archive", "rollup", "report.png"
HEADINGS = "waiting", "in flight", "finished", "timed out"
MESSAGES = 200_000
# Lower bound of lines. Fewer ones would be archived before there is a worker to kill.
AT_LEAST = 1000
NSQDS = 3
# Seconds for publishing, so that Spark reads meanwhile; and a factor by which publishing is slower
# until the end of Spark's first batch, which takes the longest. Half of the lines wait for it.
PUBLISHING = 15.0
SLOWER = 10
# Share of the lines after which a worker is killed.
DEATH_AT = 0.4
# Seconds for which a worker stays stopped (SIGSTOP) until an nsqd has sent messages to it, at most.
STOPPED_SECONDS = 1.0
# Milliseconds until nsqd delivers the dead worker's messages again.
MSG_TIMEOUT = 6000
# Seconds without progress after Spark's first batch. Remaining lines then count as missing.
PATIENCE = 60.0


def run(file: str | None, messages: int | None, threads: int, keep: str | None, v: bool) -> int:
    """Run the whole demo. Return the exit code. ``v``: with Spark's own log."""
    total = MESSAGES if messages is None else messages
    if total < AT_LEAST:
        raise click.UsageError(f"--spark needs --messages {AT_LEAST} or more")
    need_packages("the demo on Spark", ("pyspark", "pyarrow", "matplotlib"), "cli,spark,report")
    need_java()
    kept = None if keep is None else empty_folder(keep)
    lines = parts.read_lines(file, total)
    began = time.monotonic()
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        path, rolled, picture = (os.path.join(kept or folder, name) for name in KEPT)
        if not kept:
            # The picture outlives the folder.
            picture = f"{folder}.png"
        if not v:
            # Ctrl-C ends the nsqds, too, and the Writers would log that.
            library = logging.getLogger("gnsqsync")
            stack.callback(library.setLevel, library.level)
            library.setLevel(logging.ERROR)
        lookupd, nsqds = parts.start_servers(stack, NSQDS, CHANNEL)
        click.echo("starting Spark")
        session = job_session("gnsqsync demo", settings(folder), verbose=v)
        # On the main thread PySpark would set a signal handler of its own, which prints a lot.
        with ThreadPoolExecutor(1) as pool:
            spark = pool.submit(stack.enter_context, session).result()
        stack.enter_context(spark_errors(v))
        options = {"lookupdHttpAddresses": lookupd.http_address, "msgTimeoutMs": str(MSG_TIMEOUT)}
        start = partial(archive, spark, parts.TOPIC, path, channel=CHANNEL, options=options)
        again = fill(start, nsqds, lines, threads)
        click.echo("reading the Parquet files and counting")
        if again:
            click.echo(f"nsqd delivered {again:,} lines again, as nobody had finished them")
        code = parts.judge(total, numbers(path, lines), " in the Parquet files")
        if code == 0:
            click.echo("rolling up by second, and drawing")
            rollup(spark, path, rolled, window=1)
            report(rolled, picture, title=f"gnsqsync demo: {total:,} messages, one worker killed")
            click.echo(f"done in {time.monotonic() - began:.0f} s")
            if kept:
                click.echo(f"archive:  {path}")
            click.echo(f"picture:  {picture}")
            parts.say_next(parts.NEXT_WITH_SPARK)
    return code


def fill(
    start: Callable[..., StreamingQuery],
    nsqds: Sequence[Nsqd],
    lines: Sequence[bytes],
    threads: int,
) -> int:
    """Publish and archive all lines. Return the number of lines that nsqd delivered again."""
    batches = [Counts()]
    with ExitStack() as stack:
        query = start(interval=0.0, on_batch=batches.append)
        stack.callback(query.stop)
        clients = {
            nsqd.tcp_address: stack.enter_context(NsqdHTTP(nsqd.http_address)) for nsqd in nsqds
        }
        view = stack.enter_context(Figures(("published", "archived"), len(lines), HEADINGS))
        sender = stack.enter_context(parts.Publishers(lines, nsqds, threads, limit=0))
        began = time.monotonic()
        watch(query, batches, sender, clients, view)
        # A copy that came late must be in a batch before the count.
        query.processAllAvailable()
        seconds = time.monotonic() - began
        again = sum(figures(*each)[-1] for each in clients.items())
    rows, rate = batches[-1].rows, parts.rate_of(batches[-1].rows, seconds)
    click.echo(sender)
    click.echo(f"archived  {rows:,} lines in {batches[-1].batches} batches in {rate}")
    return again


def watch(
    query: StreamingQuery,
    batches: Sequence[Counts],
    sender: parts.Publishers,
    clients: Mapping[str, NsqdHTTP],
    view: Figures,
) -> None:
    """Set the pace, show progress and kill a worker, until the nsqds have nothing left."""
    total, killed, last = sender.total, False, (0, 0)
    now = changed = time.monotonic()
    while not query.awaitTermination(0.2):
        before, now = now, time.monotonic()
        published, archived = counts = sender.published, batches[-1].rows
        slower, most = (1, total) if archived else (SLOWER, total // 2)
        step = (now - before) / PUBLISHING / slower * total
        sender.limit = min(sender.limit + step, most)
        if counts != last or not archived:
            last, changed = counts, now
        done, rows = sender.is_done(), [figures(*each) for each in clients.items()]
        waiting, in_flight, *_ = map(sum, zip(*(row[1:] for row in rows), strict=True))
        line = f"{published:,} of {total:,} lines published, {archived:,} in Parquet files after"
        number = batches[-1].batches
        line += f" {number} {'batch' if number == 1 else 'batches'}, {in_flight:,} in flight"
        view.show(counts, line, f"archive: {number} Spark batches so far", rows)
        if archived and not killed and published >= total * DEATH_AT:
            killed = kill_a_worker(query, clients.values())
        is_over = done and archived >= total and not waiting + in_flight
        if is_over or now - changed > PATIENCE:
            return


def figures(address: str, client: NsqdHTTP) -> tuple[str, int, int, int, int]:
    """Return the address and the numbers of HEADINGS of the archive's channel on one nsqd."""
    (topic,) = client.stats(parts.TOPIC, CHANNEL, include_clients=False, include_mem=False).topics
    (channel,) = topic.channels
    one = channel_total(channel)
    return address, one.depth + one.deferred, one.in_flight, one.left, one.timed_out


def kill_a_worker(query: StreamingQuery, clients: Collection[NsqdHTTP]) -> bool:
    """Kill a worker of Spark that holds messages. Return False if there was none for a moment.

    A worker holds messages for moments only. So a connected worker is stopped (SIGSTOP), and killed
    after an nsqd has sent messages to it.
    """
    stopped, until = 0, time.monotonic() + STOPPED_SECONDS
    try:
        while time.monotonic() < until and not query.awaitTermination(0.01):
            holding = held_by_workers(clients)
            if not stopped:
                stopped = next((pid for pid in holding if signalled(pid, signal.SIGSTOP)), 0)
            elif holding[stopped] and signalled(stopped, signal.SIGKILL):
                text = f"SIGKILL: Spark's worker {stopped} is dead, with messages in its hands that"
                text += f" nsqd will deliver again in {MSG_TIMEOUT // 1000} s"
                click.secho(text, fg="yellow", bold=True)
                return True
        return False
    finally:
        # The worker had not asked for messages yet, or is dead.
        if stopped:
            signalled(stopped, signal.SIGCONT)


def held_by_workers(clients: Collection[NsqdHTTP]) -> Counter[int]:
    """Return the number of messages in flight by pid, for each connected worker."""
    holding: Counter[int] = Counter()
    for nsqd in clients:
        for topic in nsqd.stats(parts.TOPIC, CHANNEL, include_mem=False).topics:
            for client in topic.channels[0].clients:
                # The source's tasks put their pid into the client_id.
                pid = client.client_id.removeprefix("spark-")
                if pid.isdecimal():
                    holding[int(pid)] += client.in_flight_count
    return holding


def signalled(pid: int, number: signal.Signals) -> bool:
    """Send the signal. Return False if the process has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def numbers(path: str, lines: Sequence[bytes]) -> Iterator[int]:
    """Yield the number of each row of the Parquet files, which are read without Spark."""
    from pyarrow import dataset

    rows = dataset.dataset(path, format="parquet", ignore_prefixes=["_", "."])
    for batch in rows.to_batches(columns=["value"]):
        for body in batch.column("value").to_pylist():
            yield parts.number_of(body, lines)


def empty_folder(path: str) -> str:
    """Return the absolute path of ``--keep``. ConfigError if that folder has files."""
    need_target("--keep", path)
    folder = local_path(path, "--keep")
    if os.path.isdir(folder) and os.listdir(folder):
        raise ConfigError(f"--keep {path}: the folder is not empty; name a new one")
    return folder


@contextmanager
def temporary_folder() -> Iterator[str]:
    """Yield the folder of all temporary files, those of nsqds and Spark included.

    A signal ends the program at once, with its processes and this folder: a clean end of Spark
    would take seconds.
    """
    folder = tempfile.mkdtemp(prefix="gnsqsync-demo-")

    def end_at_once(number: int, frame: object) -> NoReturn:
        for each in ending():
            signal.signal(each, signal.SIG_IGN)
        # The Writers' threads still run, and would log the loss of their nsqds.
        logging.disable()
        kill_descendants(patience=1.0)
        shutil.rmtree(folder, ignore_errors=True)
        # A table on the terminal hides the cursor. os.write() is used because the signal may have
        # come inside of a print().
        show_cursor = b"\n\x1b[?25h" if sys.stdout.isatty() else b""
        with suppress(OSError):
            os.write(1, show_cursor + b"stopped before the end\n")
        os._exit(128 + number)

    before, tempfile.tempdir = tempfile.tempdir, folder
    try:
        with handled(ending(), end_at_once):
            yield folder
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder, ignore_errors=True)


def settings(folder: str) -> dict[str, Any]:
    """Return the options of a session with its files below ``folder``."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder}",
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": os.path.join(folder, "warehouse"),
        "spark.sql.shuffle.partitions": "2",
    }
    # local[2] never retries a task, but a killed worker needs a retry.
    return {"master": f"local[{max(2, min(NSQDS, os.cpu_count() or 1))},4]", "conf": conf}
