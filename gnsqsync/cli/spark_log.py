"""``gnsqsync spark log``: list the logs of Spark's queries, publish them again, delete them.

Knows click, the terminal and the Writer. Runs without Spark.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gnsqsync import Writer
from gnsqsync.cli.common import (
    connection_keywords,
    connection_options,
    lookupd_option,
    nsqd_option,
    print_json,
    show_log,
    size_text,
)
from gnsqsync.cli.spark_needs import need_packages
from gnsqsync.cli.spark_options import storage_error
from gnsqsync.commands.options import JSON, YES
from gnsqsync.commands.options_click import as_click
from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.process.output import say
from gnsqsync.spark.jobs.common import parse_time, storage_path
from gnsqsync.stats import counted

if TYPE_CHECKING:
    from gnsqsync.spark.streams import Stream

Command = TypeVar("Command", bound=Callable[..., Any])

_HOUR = 3600.0
# Upper bound of a body in bytes. It is large, because nsqd checks its own limit.
_MAX_BODY = 1 << 30


def _age(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Return ``--older-than`` in seconds. ConfigError below twice the interval of live signs."""
    if value is None:
        return None
    now = datetime.now(UTC)
    seconds = (now - parse_time(value, now)).total_seconds()
    if seconds < 2 * _HOUR:
        raise ConfigError(
            f"--older-than is {value!r}; at least 2h: a query that only waits for messages writes a"
            " sign into its log twice an hour"
        )
    return seconds


_path = click.argument("path", metavar="PATH")
_wal_options = click.option(
    "--wal-options",
    metavar="JSON",
    help="Options of the object store, as of option walOptions.",
)
_streams = click.option(
    "--stream",
    "names",
    multiple=True,
    metavar="NAME",
    help="Only this stream, as 'list' names it; may be given several times. [default: all]",
)
_dry_run = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
_yes = as_click(YES, short="-y")


def _older_than(default: str | None) -> Callable[[Command], Command]:
    return click.option(
        "--older-than",
        "age",
        callback=_age,
        required=default is None,
        default=default,
        show_default=default is not None,
        metavar="AGE",
        help="Only streams into which nothing was written for this time, as 12h or 7d.",
    )


@contextlib.contextmanager
def _foreseen() -> Iterator[None]:
    """Turn a failure of the storage into one sentence."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(storage_error(error)) from None


def _found(path: str, wal_options: str | None, names: tuple[str, ...] = ()) -> list[Stream]:
    need_packages("gnsqsync spark log", ("pyarrow",), "spark")
    from gnsqsync.spark.streams import streams

    found = streams(storage_path(path, "PATH"), wal_options)
    if missing := sorted(set(names) - {each.name for each in found}):
        raise NSQError(f"{path} has no stream {missing[0]!r}; 'gnsqsync spark log list' names all")
    return [each for each in found if not names or each.name in names]


def _line(stream: Stream, now: float) -> str:
    """Return a stream in a few words."""
    used = datetime.fromtimestamp(stream.used_at, UTC)
    rows = f"{counted(stream.rows, 'pending row')}"
    if stream.rows:
        rows += f" of {', '.join(stream.topics)}"
    if stream.damaged:
        rows = f"damaged: {stream.damaged}"
    use = "perhaps in use" if stream.in_use(now) else "unused"
    return (
        f"{stream.name}  {used:%Y-%m-%d %H:%M} UTC, {use}  {size_text(stream.bytes)} in"
        f" {counted(stream.files, 'file')}  {rows}"
    )


def _go_on(question: str, *, yes: bool, dry_run: bool) -> bool:
    """Return True if the action shall be done: with ``yes``, or after the question."""
    if dry_run:
        click.echo("dry run: nothing was changed", err=True)
        return False
    if yes:
        return True
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        raise
    if not agreed:
        click.echo("nothing was changed", err=True)
    return agreed


def _need_terminal(action: str, *, yes: bool, dry_run: bool) -> None:
    if not (yes or dry_run or (sys.stdin is not None and sys.stdin.isatty())):
        raise ConfigError(
            f"{action} asks before it begins, and this is not a terminal; give --yes or --dry-run"
        )


@click.command(
    "list", epilog="Example: gnsqsync spark log list /data/nsq/_gnsqsync/checkpoint/nsq-wal"
)
@_path
@_wal_options
@as_click(JSON, help="Print an object for each stream.")
def list_(path: str, wal_options: str | None, as_json: bool) -> int:
    """List the streams of the log folder PATH, the longest unused one first.

    Each line has the time of the last write, the size, and the pending rows. Pending rows were
    taken from nsqd and are not committed as far as the log knows. The last batch of a query is
    always pending, because Spark commits it with the next one; so is each spark.read.
    """
    show_log(False)
    with _foreseen():
        found = _found(path, wal_options)
    now = time.time()
    for each in found:
        if not as_json:
            click.echo(_line(each, now))
            continue
        print_json(
            {
                "stream": each.name,
                "used_at": datetime.fromtimestamp(each.used_at, UTC).isoformat(),
                "in_use": each.in_use(now),
                "bytes": each.bytes,
                "files": each.files,
                "committed_epoch": each.committed,
                "last_epoch": each.last,
                "pending_rows": each.rows,
                "topics": each.topics,
                "damaged": each.damaged,
            }
        )
    if not found and not as_json:
        click.echo(f"{path} has no streams", err=True)
    return 0


@click.command(
    epilog="Example: gnsqsync spark log publish /data/nsq-wal --stream 3f2a... -t 127.0.0.1:4150"
)
@_path
@_wal_options
@_streams
@_older_than("1d")
@_dry_run
@_yes
@nsqd_option()
@lookupd_option()
@connection_options
def publish(
    path: str,
    wal_options: str | None,
    names: tuple[str, ...],
    age: float,
    dry_run: bool,
    yes: bool,
    nsqd_tcp_addresses: tuple[str, ...],
    lookupd_http_addresses: tuple[str, ...],
    **options: Any,
) -> int:
    """Publish the pending rows of unused streams to their topics again, then mark them as done.

    Use it for a log whose checkpoint was lost. All channels of a topic get the messages, not only
    the query's channel. An epoch is marked as done when nsqd has confirmed all of it. If the
    command ends before that, the next one publishes a part twice. Never publish the rows of a query
    that you start again: the query repeats them by itself.
    """
    connection = connection_keywords(options)
    _need_terminal("publish", yes=yes, dry_run=dry_run)
    addresses = [*nsqd_tcp_addresses] or (None if lookupd_http_addresses else ["127.0.0.1:4150"])
    with _foreseen():
        now = time.time()
        found = _found(path, wal_options, names)
        damaged = [each for each in found if each.damaged]
        for each in damaged:
            click.echo(f"{each.name}: left out, as it is damaged: {each.damaged}", err=True)
        chosen = _unused([each for each in found if each.rows], now, age, names)
        if not chosen:
            click.echo("no unused stream has pending rows that can be read", err=True)
            return 1 if damaged else 0
        total = sum(each.rows for each in chosen)
        what = f"{counted(total, 'row')} of {counted(len(chosen), 'stream')}"
        if not _go_on(f"Publish {what} again?", yes=yes, dry_run=dry_run):
            return 0 if dry_run else 1
        writer = Writer(
            addresses,
            lookupd_http_addresses=[*lookupd_http_addresses],
            max_msg_size=_MAX_BODY,
            max_body_size=_MAX_BODY,
            **connection,
        )
        with writer:
            for each in chosen:
                rows = each.publish(writer.publish_many)
                say(
                    sys.stdout,
                    f"{each.name}: published {counted(rows, 'message')}"
                    f" to {', '.join(each.topics)}",
                )
    return 1 if damaged else 0


@click.command(
    epilog="Example: gnsqsync spark log delete s3://bucket/nsq-wal --older-than 7d --dry-run"
)
@_path
@_wal_options
@_streams
@_older_than(None)
@click.option(
    "--with-pending",
    is_flag=True,
    help="Delete streams with pending rows, too. They are the only copy if no sink has the rows.",
)
@_dry_run
@_yes
def delete(
    path: str,
    wal_options: str | None,
    names: tuple[str, ...],
    age: float,
    with_pending: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Delete streams into which nothing was written for --older-than.

    A query that runs writes a sign into its stream twice an hour, so its stream stays, even if no
    message comes. A query that you start again later needs its stream: choose --older-than longer
    than the time between two runs. A query of an older version of gnsqsync gives no sign: update it
    first.
    """
    show_log(False)
    _need_terminal("delete", yes=yes, dry_run=dry_run)
    with _foreseen():
        chosen = _unused(_found(path, wal_options, names), time.time(), age, names)
        kept = [each for each in chosen if (each.rows or each.damaged) and not with_pending]
        for each in kept:
            click.echo(f"{each.name}: kept, as it has pending rows; see --with-pending", err=True)
        chosen = [each for each in chosen if each not in kept]
        if not chosen:
            click.echo("there is nothing to delete", err=True)
            return 0
        size = size_text(sum(each.bytes for each in chosen))
        rows = sum(each.rows for each in chosen)
        lost = f" with {counted(rows, 'pending row')}" if rows else ""
        question = f"Delete {counted(len(chosen), 'stream')} ({size}){lost}?"
        if not _go_on(question, yes=yes, dry_run=dry_run):
            return 0 if dry_run else 1
        for each in chosen:
            each.delete()
            say(sys.stdout, f"{each.name}: deleted {counted(each.files, 'file')}")
    return 0


def _unused(found: list[Stream], now: float, age: float, names: tuple[str, ...]) -> list[Stream]:
    """Show and return the streams that no driver uses. NSQError if ``names`` has a used one."""
    chosen = []
    for each in found:
        if each.in_use(now, age):
            if each.name in names:
                raise NSQError(
                    f"stream {each.name} was written {(now - each.used_at) / _HOUR:.1f} h ago, so a"
                    " query may use it: end the query, and wait, or lower --older-than (2h at"
                    " least)"
                )
            continue
        click.echo(_line(each, now), err=True)
        chosen.append(each)
    return chosen


log: click.Group = click.Group(
    "log",
    commands={"list": list_, "publish": publish, "delete": delete},
    help="List, publish again or delete the logs of Spark's queries.\n\n"
    "PATH is option walPath of the source; of an archive it is the folder nsq-wal in its checkpoint"
    " (ARCHIVE/_gnsqsync/checkpoint/nsq-wal). Runs without Spark, and beside running queries.",
    epilog="Example: gnsqsync spark log list s3://bucket/nsq/_gnsqsync/checkpoint/nsq-wal",
)
