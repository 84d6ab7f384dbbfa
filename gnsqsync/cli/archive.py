"""``gnsqsync spark archive``: the messages of topics as Parquet files or a Delta table."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from gnsqsync.cli.common import (
    Flag,
    Signals,
    connection_keywords,
    print_json,
    rate_text,
)
from gnsqsync.cli.progress import Rhythm
from gnsqsync.cli.spark_needs import need_target
from gnsqsync.cli.spark_options import (
    SUBMIT_HINT,
    file_options,
    format_options,
    job_session,
    nsq_options,
    spark_errors,
)
from gnsqsync.commands.options_click import Number
from gnsqsync.process.output import mention
from gnsqsync.spark.jobs.common import submitted
from gnsqsync.spark.jobs.layout import FORMATS
from gnsqsync.stats import counted

if TYPE_CHECKING:
    from gnsqsync.spark.jobs.batches import Counts


class Progress:
    """A progress line on stderr, at most one every few seconds, after batches with messages."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._rhythm = Rhythm(0.0)

    def __call__(self, counts: Counts) -> None:
        if not self._quiet and counts.rows and self._rhythm.is_due():
            mention(sys.stderr, f"archived {counts_text(counts)}")


def counts_text(counts: Counts) -> str:
    """Return the counts in a few words."""
    twice = f", {counts.duplicates:,} came twice" if counts.duplicates else ""
    batches = "batch" if counts.batches == 1 else "batches"
    return f"{counted(counts.rows, 'message')} in {counts.batches:,} {batches}{twice}"


@click.command(
    epilog="Example: gnsqsync spark archive orders payments --channel archive --to /data/nsq"
    f" -l 127.0.0.1:4161. {SUBMIT_HINT}"
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--channel",
    "-c",
    required=True,
    metavar="CHANNEL",
    help="The archive's own channel on each topic; nobody else may read from it.",
)
@click.option(
    "--to",
    "path",
    required=True,
    metavar="FOLDER",
    help="The archive: a folder that the driver and all executors share, or a URL as s3://bucket/nsq.",
)
@click.option(
    "--format",
    default="parquet",
    show_default=True,
    type=click.Choice(FORMATS),
    help="Parquet files in folders by topic, date and hour; or a Delta table, with one MERGE per"
    " batch. That needs Delta's package.",
)
@click.option(
    "--nsqd-http-address",
    "nsqd_http_addresses",
    multiple=True,
    metavar="HOST:PORT",
    help="The HTTP addresses of the nsqds of --nsqd-tcp-address, in the same order."
    " [default: the port after the TCP port]",
)
@click.option(
    "--checkpoint",
    metavar="PATH",
    help="Where Spark and the source keep their position: a folder or URL."
    " [default: hidden in the archive]",
)
@click.option(
    "--once",
    is_flag=True,
    help="Archive the messages that wait now, then end (Spark's AvailableNow).",
)
@click.option(
    "--interval",
    default=60.0,
    show_default=True,
    type=Number(0),
    metavar="SECONDS",
    help="Seconds from batch to batch.",
)
@click.option(
    "--max-messages",
    type=click.IntRange(1),
    metavar="N",
    help="Messages per batch at most. [default: all that are there]",
)
@click.option(
    "--compact-every",
    default=600.0,
    show_default=True,
    type=Number(0),
    metavar="SECONDS",
    help="Seconds between two merges of small files, as 'gnsqsync spark compact' does, or Delta's"
    " OPTIMIZE; with --once at the end. 0 for never.",
)
@file_options
@click.option(
    "--look-up-all",
    is_flag=True,
    help="Look up each message in the archive, and not only those that nsqd says it delivers again:"
    " an nsqd that was killed may not know. Costs a join per batch. A Delta table always does.",
)
@nsq_options("source", "maxInFlight=1000")
def archive(
    topics: tuple[str, ...],
    channel: str,
    path: str,
    format: str,
    nsqd_tcp_addresses: tuple[str, ...],
    nsqd_http_addresses: tuple[str, ...],
    lookupd_http_addresses: tuple[str, ...],
    checkpoint: str | None,
    once: bool,
    interval: float,
    max_messages: int | None,
    compact_every: float,
    target_size: int,
    compression: str,
    look_up_all: bool,
    given: dict[str, str],
    as_json: bool,
    **options: Any,
) -> int:
    """Keep what is published to TOPICs as Parquet or a Delta table, each message exactly once.

    The files are sorted into folders by topic and by date and hour of the publish time (UTC), so
    spark.read.parquet, DuckDB or pandas read them as they are. A message is finished in nsqd only
    when it is on disk. So a crash or a kill of this job at any moment loses nothing, and the next
    start goes on from there. With --once it fails when none of the nsqds with messages can be
    reached by TCP, and names each, and when it takes nothing although messages wait. Ctrl-C ends.
    """
    need_target("--to", path)
    need_target("--checkpoint", checkpoint)
    from gnsqsync.spark.jobs.archive import archive as start_archive
    from gnsqsync.spark.jobs.archive import check
    from gnsqsync.spark.jobs.batches import Counts
    from gnsqsync.spark.jobs.common import spark_path, storage_path
    from gnsqsync.spark.jobs.compaction import compact
    from gnsqsync.spark.jobs.delta import SETTINGS, optimize

    verbose = options["verbose"]
    source = format_options(
        nsqd_tcp_addresses, lookupd_http_addresses, connection_keywords(options)
    )
    if nsqd_http_addresses:
        source["nsqdHttpAddresses"] = ",".join(nsqd_http_addresses)
    query_options: dict[str, Any] = {
        "channel": channel,
        "options": {**source, **given},
        "checkpoint": checkpoint,
        "max_messages": max_messages,
    }
    # Wrong options are reported before Spark starts.
    check(topics, path, **query_options)
    latest = Counts()
    progress = Progress(as_json)
    merged = 0

    def on_batch(counts: Counts) -> None:
        nonlocal latest
        latest = counts
        progress(counts)

    def merge_small_files() -> int:
        if format == "delta":
            url = spark_path(storage_path(path, "--to"))
            return optimize(spark, url, target_size=target_size << 20, compression=compression)
        done = compact(
            path,
            may_be_empty=True,
            target_size=target_size << 20,
            compression=compression,
            stop=stop.is_set,
        )
        return done.merged

    stop = Flag()
    began = time.monotonic()
    if format == "delta" and not submitted():
        # Under spark-submit the user gives these settings together with Delta's package.
        options["conf"] = SETTINGS | options["conf"]
    with job_session("gnsqsync spark archive", options, verbose=verbose) as spark:
        with spark_errors(verbose), Signals(stop.set) as signals:
            query = start_archive(
                spark,
                topics,
                path,
                format=format,
                interval=interval,
                available_now=once,
                compression=compression,
                look_up_all=look_up_all,
                on_batch=on_batch,
                **query_options,
            )
            compact_at = time.monotonic() + compact_every
            while not query.awaitTermination(1) and not stop.is_set():
                # Merges run beside the batches, and even without batches, for the last busy hour.
                if compact_every and time.monotonic() >= compact_at:
                    merged += merge_small_files()
                    compact_at = time.monotonic() + compact_every
            if stop.is_set():
                query.stop()
            elif compact_every:
                merged += merge_small_files()
    seconds = time.monotonic() - began
    if as_json:
        print_json(
            {
                "topics": list(topics),
                "archived": latest.rows,
                "duplicates_left_out": latest.duplicates,
                "batches": latest.batches,
                "files_merged_away": merged,
                "seconds": round(seconds, 3),
            }
        )
    else:
        click.echo(
            f"archived {counts_text(latest)} in {seconds:.1f} s:"
            f" {rate_text(latest.rows, seconds, 'messages')}"
        )
    # Without --once a signal is the normal end, so a service manager must not see a failure.
    return 128 + signals.received if once and signals.received is not None else 0
