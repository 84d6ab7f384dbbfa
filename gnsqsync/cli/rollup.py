"""``gnsqsync spark rollup``: count the messages of an archive by topic and window of time."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import click

from gnsqsync.cli.common import counts_option, print_json, show_log
from gnsqsync.cli.spark_needs import need_target
from gnsqsync.cli.spark_options import (
    SUBMIT_HINT,
    job_session,
    spark_errors,
    spark_options,
    window_options,
)
from gnsqsync.stats import counted


@click.command(
    epilog=f"Example: gnsqsync spark rollup /data/nsq /data/nsq-rollup --window 60. {SUBMIT_HINT}"
)
@click.argument("archive", metavar="ARCHIVE")
@click.argument("path", metavar="FOLDER")
@click.option(
    "--window",
    default=60,
    show_default=True,
    type=click.IntRange(1, 3600),
    metavar="SECONDS",
    help="Length of a window; it must divide an hour.",
)
@window_options("hours with messages that were published")
@click.option("--whole", is_flag=True, help="Count hours again that did not change.")
@counts_option
@click.option("--verbose", "-v", is_flag=True, help="Show Spark's log.")
@spark_options
def rollup(
    archive: str,
    path: str,
    window: int,
    start: datetime | None,
    end: datetime | None,
    whole: bool,
    as_json: bool,
    verbose: bool,
    **options: Any,
) -> int:
    """Count the messages of an ARCHIVE by topic and window of publish time, into Parquet in FOLDER.

    Messages, bytes, attempts, redeliveries, and the delay from publish to read (median, 95th
    percentile, maximum). Each run counts the hours of the archive that changed since the last
    one; 'gnsqsync spark report' draws the result.
    """
    need_target("FOLDER", path)
    from gnsqsync.spark.jobs.rollup import rollup as run_rollup

    show_log(verbose)
    began = time.monotonic()
    with job_session("gnsqsync spark rollup", options, verbose=verbose) as spark:
        with spark_errors(verbose):
            rolled = run_rollup(
                spark, archive, path, window=window, start=start, end=end, whole=whole
            )
    seconds = time.monotonic() - began
    if as_json:
        print_json({**rolled._asdict(), "seconds": round(seconds, 3)})
    else:
        click.echo(
            f"counted {counted(rolled.messages, 'message')}"
            f" of {counted(rolled.hours, 'changed hour')} into"
            f" {counted(rolled.windows, 'window')} in {seconds:.1f} s"
        )
    return 0
