"""``gnsqsync spark compact``: merge the small files of an archive into larger ones."""

from __future__ import annotations

import time

import click

from gnsqsync.cli.common import Flag, Signals, counts_option, print_json
from gnsqsync.cli.spark_options import file_options, storage_error
from gnsqsync.stats import counted


@click.command(epilog="Example: gnsqsync spark compact s3://bucket/nsq --target-size 256")
@click.argument("archive", metavar="ARCHIVE")
@file_options
@click.option(
    "--whole",
    is_flag=True,
    help="Look at all folders, and not only at those that got files since the last time.",
)
@counts_option
def compact(archive: str, target_size: int, compression: str, whole: bool, as_json: bool) -> int:
    """Merge the small files of an ARCHIVE, hour by hour, into files of the target size.

    It may run while 'gnsqsync spark archive' writes and others read, and may be killed at any
    moment. 'gnsqsync spark archive' does the same by itself every --compact-every seconds, and at
    the end of --once. Runs without Spark.
    """
    from gnsqsync.spark.jobs.compaction import compact as run_compact

    stop = Flag()
    began = time.monotonic()
    with Signals(stop.set) as signals:
        try:
            done = run_compact(
                archive,
                whole=whole,
                target_size=target_size << 20,
                compression=compression,
                stop=stop.is_set,
            )
        except ImportError as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            raise click.ClickException(storage_error(error)) from None
    seconds = time.monotonic() - began
    if as_json:
        print_json({**done._asdict(), "seconds": round(seconds, 3)})
    else:
        click.echo(
            f"merged {counted(done.merged, 'file')} of {counted(done.folders, 'folder')} into"
            f" {counted(done.made, 'file')} in {seconds:.1f} s"
        )
    return 0 if signals.received is None else 128 + signals.received
