"""``gnsqsync spark replay``: publish messages of an archive to a topic again."""

from __future__ import annotations

import contextlib
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from gnsqsync.cli.common import (
    connection_keywords,
    print_json,
    rate_text,
)
from gnsqsync.cli.progress import Counting
from gnsqsync.cli.spark_needs import need_target
from gnsqsync.cli.spark_options import (
    SUBMIT_HINT,
    format_options,
    job_session,
    nsq_options,
    spark_errors,
    window_options,
)
from gnsqsync.commands.options_click import Number
from gnsqsync.stats import counted

if TYPE_CHECKING:
    from gnsqsync.spark.jobs.replay import Replayed


@click.command(
    epilog="Example: gnsqsync spark replay /data/nsq orders-again --from-topic orders"
    ' --start 2026-11-20T18:00 --filter "attempts > 1" --rate 5000 --state /data/replay-1.'
    f" {SUBMIT_HINT}"
)
@click.argument("archive", metavar="ARCHIVE")
@click.argument("topic", metavar="TOPIC")
@click.option(
    "--from-topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="Only messages of this topic of the archive; may be given several times. [default: all]",
)
@window_options("messages that were published")
@click.option(
    "--filter",
    "condition",
    metavar="SQL",
    help="Only messages that meet a Spark SQL condition over value, id, timestamp, attempts, nsqd,"
    " received_at and topic: \"string(value) LIKE '%error%'\".",
)
@click.option(
    "--rate",
    type=Number(0, min_open=True),
    metavar="N",
    help="Messages per second at most, of the whole job. [default: no limit]",
)
@click.option(
    "--state",
    metavar="FOLDER",
    help="The folder that records finished parts; after a crash the same command with the same"
    " folder goes on. On storage that the driver and all executors share.",
)
@click.option(
    "--parallelism",
    type=click.IntRange(1),
    metavar="N",
    help="Tasks at a time; 1 keeps the order of the publish times. [default: the cores of Spark]",
)
@click.option(
    "--part-messages",
    default=10_000,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Messages of a part. After a crash each task may publish one part twice.",
)
@click.option("--dry-run", is_flag=True, help="Only count; needs no --state.")
@nsq_options("sink", "maxMessageBytes=5000000")
def replay(
    archive: str,
    topic: str,
    topics: tuple[str, ...],
    start: datetime | None,
    end: datetime | None,
    condition: str | None,
    rate: float | None,
    state: str | None,
    parallelism: int | None,
    part_messages: int,
    dry_run: bool,
    nsqd_tcp_addresses: tuple[str, ...],
    lookupd_http_addresses: tuple[str, ...],
    given: dict[str, str],
    as_json: bool,
    **options: Any,
) -> int:
    """Publish messages of an ARCHIVE to TOPIC again.

    The messages are cut into parts by publish time, which leave in that order, a few at a time.
    After a crash, a kill or Ctrl-C the same command goes on. Finished parts are never published
    again; parts that were under way are published again. So a message may come twice, and none is
    left out.
    """
    need_target("--state", state)
    from gnsqsync.spark.jobs.replay import replay as run_replay

    verbose = options["verbose"]
    sink = format_options(nsqd_tcp_addresses, lookupd_http_addresses, connection_keywords(options))
    began = time.monotonic()
    with job_session("gnsqsync spark replay", options, verbose=verbose) as spark:
        with spark_errors(verbose), Progress(as_json) as progress:
            result = run_replay(
                spark,
                archive,
                topic,
                state=state,
                options={**sink, **given},
                topics=topics,
                start=start,
                end=end,
                filter=condition,
                rate=rate,
                parallelism=parallelism,
                part_messages=part_messages,
                dry_run=dry_run,
                progress=progress.show,
            )
    _report(result, topic, dry_run, time.monotonic() - began, as_json)
    return 0


class Progress(contextlib.ExitStack):
    """The progress bar. It begins with the first report, because the total is not known before."""

    def __init__(self, quiet: bool) -> None:
        super().__init__()
        self._quiet = quiet
        self._counting: Counting | None = None
        self._shown = 0

    def show(self, news: Replayed) -> None:
        done = news.before + news.published
        if self._counting is None:
            self._counting = self.enter_context(
                Counting("replayed", news.messages, quiet=self._quiet)
            )
        self._counting.advance(
            done - self._shown, f"{done:,} of {counted(news.messages, 'message')}"
        )
        self._shown = done


def _report(result: Replayed, topic: str, dry_run: bool, seconds: float, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                **result._asdict(),
                "first": None if result.first is None else result.first.isoformat(),
                "last": None if result.last is None else result.last.isoformat(),
                "seconds": round(seconds, 3),
            }
        )
        return
    if result.first is None or result.last is None:
        click.echo("the archive has no such messages")
        return
    window = f"published from {result.first:%Y-%m-%d %H:%M:%S} to {result.last:%Y-%m-%d %H:%M:%S}"
    if dry_run:
        click.echo(f"{counted(result.messages, 'message')}, {window} UTC; nothing was published")
        return
    before = f" ({result.before:,} done before)" if result.before else ""
    click.echo(
        f"published {result.published:,} of {counted(result.messages, 'message')}"
        f" to {topic}{before}"
        f" in {seconds:.1f} s: {rate_text(result.published, seconds, 'messages')}"
    )
