"""``gnsqsync spark report``: draw the counts of a rollup as a picture or a page."""

from __future__ import annotations

from datetime import datetime

import click

from gnsqsync.cli.common import print_json
from gnsqsync.cli.spark_options import storage_error, window_options


@click.command(epilog="Example: gnsqsync spark report /data/nsq-rollup week.html --start 7d")
@click.argument("rollup", metavar="FOLDER")
@click.argument("file", metavar="FILE")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    help="Only this topic; may be given several times.",
)
@window_options("windows that begin")
@click.option("--title", default="NSQ topics", show_default=True, metavar="TEXT")
@click.option("--json", "as_json", is_flag=True, help="Print the file's name as JSON.")
def report(
    rollup: str,
    file: str,
    topics: tuple[str, ...],
    start: datetime | None,
    end: datetime | None,
    title: str,
    as_json: bool,
) -> int:
    """Draw the rollup in FOLDER to FILE, a .png or .html.

    Messages and bytes per second, redeliveries and delays over time, for each topic. The HTML page
    has its pictures inside and needs nothing else. Runs without Spark.
    """
    from gnsqsync.spark.jobs.report import report as draw

    try:
        written = draw(rollup, file, topics=topics, start=start, end=end, title=title)
    except ImportError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(storage_error(error)) from None
    if as_json:
        print_json({"file": written})
    else:
        click.echo(f"drawn to {written}")
    return 0
