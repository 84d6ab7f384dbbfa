"""``gnsqsync to-file``: write the messages of topics to files, as nsq_to_file does."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from gnsqsync import Message, Reader, ReaderGroup, TopicGroup
from gnsqsync.cli.common import (
    connection_keywords,
    connection_options,
    lookupd_option,
    nsqd_option,
    rate_text,
    raw_option,
    reader_addresses,
    size_text,
)
from gnsqsync.cli.go_options import Duration, consumer_options
from gnsqsync.cli.progress import Counting
from gnsqsync.commands.envelopes import OpenEnvelopes
from gnsqsync.commands.options import CONSUME
from gnsqsync.commands.options_click import as_click
from gnsqsync.daemon.goregexp import compile_go
from gnsqsync.errors import ConfigError
from gnsqsync.options import ConnectionOptions
from gnsqsync.process.backup.disk import LocalDisk
from gnsqsync.process.backup.files import Rules, TopicFiles
from gnsqsync.process.backup.names import FileNames
from gnsqsync.process.backup.runner import BackUp, Progress
from gnsqsync.process.metrics_page import Exposed
from gnsqsync.process.output import mention
from gnsqsync.stats import counted

log: logging.Logger = logging.getLogger("gnsqsync.to_file")


@click.command(
    epilog="""\b
Example: gnsqsync to-file --topic orders --output-dir /backup -l 127.0.0.1:4161
         gnsqsync to-file --topic orders --output-dir /backup --gzip --rotate-size 100000000
         gnsqsync to-file --topic-pattern '^shop' --output-dir /backup -l 127.0.0.1:4161

Durations are written like 30s, 5m or 1h30m; a bare number means seconds.

Exit codes: 0 stopped by a signal, and every message was answered; 1 anything else; 2 wrong usage.
""",
)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="May be given many times.")
@click.option(
    "--topic-pattern",
    metavar="REGEXP",
    help="All topics of the nsqlookupds that match; with --topic, those of them that match.",
)
@click.option(
    "--topic-refresh",
    default="1m",
    show_default=True,
    type=Duration(zero=False),
    help="Time between two requests for topics that match.",
)
@click.option("--channel", "-c", default="nsq_to_file", show_default=True, metavar="CHANNEL")
@nsqd_option()
@lookupd_option()
@click.option("--output-dir", required=True, metavar="DIR", help="Folder of finished files.")
@click.option(
    "--work-dir",
    metavar="DIR",
    help="Folder of files that are being written. [default: --output-dir]",
)
@click.option(
    "--filename-format",
    default="<TOPIC>.<HOST><REV>.<DATETIME>.log",
    show_default=True,
    metavar="FORMAT",
    help="May have <TOPIC>, <HOST>, <PID>, <DATETIME> and <REV>, which grows if a file exists.",
)
@click.option(
    "--datetime-format",
    default="%Y-%m-%d_%H",
    show_default=True,
    metavar="FORMAT",
    help="<DATETIME> in strftime's form; a new value begins a new file.",
)
@click.option(
    "--host-identifier",
    default="",
    metavar="TEXT",
    help="<HOST>; may have <SHORT_HOST> and <HOSTNAME>. [default: <SHORT_HOST>]",
)
@raw_option("Write nsqd's bytes. Without it only the body of a message with headers is written.")
@click.option("--gzip", is_flag=True, help="Compress.")
@click.option(
    "--gzip-level",
    default=6,
    show_default=True,
    type=click.IntRange(1, 9),
    metavar="LEVEL",
    help="1 is fastest, 9 is smallest.",
)
@click.option("--skip-empty-files", is_flag=True, help="Begin no file before there is a message.")
@click.option(
    "--rotate-size",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    metavar="BYTES",
    help="Begin a new file when one is bigger, before compression; 0: never.",
)
@click.option(
    "--rotate-interval",
    default="0",
    show_default=True,
    type=Duration(zero=True),
    help="Begin a new file when one is older; 0: never.",
)
@click.option(
    "--sync-interval",
    default="30s",
    show_default=True,
    type=Duration(zero=False),
    help="Longest time until messages are synced and finished.",
)
@as_click(
    CONSUME["max_in_flight"],
    default=200,
    show_default=True,
    help="Upper bound of unfinished messages of a topic.",
)
@click.option(
    "--consumer-opt",
    "consumer",
    multiple=True,
    callback=consumer_options,
    metavar="NAME,VALUE",
    help="An option of the consumer by go-nsq's name; may be given many times.",
)
@as_click(
    CONSUME["shutdown_timeout"],
    help="Seconds after the first signal in which received messages are written.",
)
@as_click(
    CONSUME["metrics_address"],
    help="Serve metrics for Prometheus, /livez and /readyz at this address; without a host on"
    " 127.0.0.1.",
)
@as_click(
    CONSUME["handler_limit"],
    help="/livez fails when a write or sync takes longer. [default: no limit]",
)
@connection_options
def to_file(
    topics: tuple[str, ...],
    topic_pattern: str | None,
    topic_refresh: float,
    channel: str,
    nsqd_tcp_addresses: tuple[str, ...],
    lookupd_http_addresses: tuple[str, ...],
    output_dir: str,
    work_dir: str | None,
    filename_format: str,
    datetime_format: str,
    host_identifier: str,
    raw: bool,
    gzip: bool,
    gzip_level: int,
    skip_empty_files: bool,
    rotate_size: int,
    rotate_interval: float,
    sync_interval: float,
    max_in_flight: int,
    consumer: dict[str, Any],
    shutdown_timeout: float,
    metrics_address: str | None,
    handler_limit: float | None,
    **options: Any,
) -> int:
    """Write the messages of topics to files, each with a newline behind it.

    A message is finished after its file is synced to the disk, so no message is lost at any end.
    After a crash, unfinished messages are written again. After the first signal the received
    messages are written, synced and finished; a second signal does not wait. SIGHUP begins new
    files.
    """
    keywords = {**connection_keywords(options), **consumer}
    exposed = Exposed(metrics_address, handler_limit)
    rules = Rules(
        output_dir=os.path.normpath(output_dir),
        work_dir=os.path.normpath(work_dir or output_dir),
        gzip_level=gzip_level if gzip else 0,
        rotate_size=rotate_size,
        rotate_interval=rotate_interval,
        skip_empty_files=skip_empty_files,
    )
    addresses = reader_addresses(nsqd_tcp_addresses, lookupd_http_addresses)
    host = _host(host_identifier)

    def make_files(topic: str) -> TopicFiles:
        names = FileNames.of(
            topic,
            filename_format=filename_format,
            datetime_format=datetime_format,
            host=host,
            pid=os.getpid(),
            gzip=gzip,
            has_revisions=rules.has_revisions,
        )
        return TopicFiles(names, rules, LocalDisk(), now=time.localtime)

    def make_reader(topic: str, handler: Callable[[Message], None]) -> Reader:
        reader = Reader(
            topic,
            channel,
            handler,
            max_in_flight=max_in_flight,
            # A message is written however often it was delivered.
            max_attempts=0,
            # Messages are held until the next sync, so the Reader must ask nsqd for more.
            latency="throughput",
            # A sync may take longer than the message timeout.
            auto_touch=True,
            middleware=[] if raw else [OpenEnvelopes(_say_what_is_left_out)],
            observer=exposed.observers(topic, channel),
            **addresses,
            **keywords,
        )
        exposed.watch(reader)
        return reader

    wanted = _wanted(topics, topic_pattern, addresses["lookupd_http_addresses"])
    if (topic_pattern or len(wanted) > 1) and "<TOPIC>" not in filename_format:
        raise ConfigError("missing <TOPIC> in --filename-format when there may be several topics")
    # Wrong options must fail before anything is written.
    for topic in wanted or ["any"]:
        make_files(topic)
        make_reader(topic, print)
    with Counting("to-file", None, quiet=not sys.stderr.isatty()) as counting:
        back_up = BackUp(
            make_files,
            make_reader,
            max_in_flight=max_in_flight,
            sync_interval=sync_interval,
            on_round=_Shown(counting).show,
        )
        group = (
            ReaderGroup([back_up.reader(topic) for topic in wanted])
            if wanted
            else TopicGroup(
                compile_go(topic_pattern or ""),
                back_up.reader,
                lookupd_http_addresses=addresses["lookupd_http_addresses"],
                lookupd_poll_interval=topic_refresh,
                options=_tls_of(keywords),
            )
        )
        with exposed.serve(back_up.readers, 0, _say):
            names = ", ".join(wanted) if wanted else f"topics that match {topic_pattern}"
            _say(f"to-file writes {names} to {rules.output_dir}")
            ending = back_up.run(group, shutdown_timeout)
    total = back_up.progress()
    _say(f"to-file: {counted(total.finished, 'message')} finished, {size_text(total.size)}")
    _say(str(ending))
    return ending.exit_code


def _wanted(topics: tuple[str, ...], pattern: str | None, lookupds: list[str]) -> list[str]:
    """Return the names of topics, or [] if nsqlookupds are asked for matching topics."""
    if not topics and not pattern:
        raise ConfigError("--topic or --topic-pattern required")
    try:
        compiled = compile_go(pattern or "")
    except re.error as error:
        raise ConfigError(
            f"--topic-pattern {pattern!r} is not a regular expression: {error}"
        ) from None
    if not topics:
        if not lookupds:
            raise ConfigError("--lookupd-http-address must be specified when no --topic specified")
        return []
    wanted = [topic for topic in dict.fromkeys(topics) if compiled.search(topic)]
    for topic in topics:
        if topic not in wanted:
            _say(f"to-file: skipping topic {topic} (doesn't match pattern {pattern})")
    if not wanted:
        raise ConfigError(f"none of the topics matches --topic-pattern {pattern!r}")
    return wanted


def _host(identifier: str) -> str:
    name = os.uname().nodename
    short = name.split(".")[0]
    return (identifier or short).replace("<SHORT_HOST>", short).replace("<HOSTNAME>", name)


def _tls_of(keywords: dict[str, Any]) -> ConnectionOptions:
    """Return the TLS options, for https addresses of nsqlookupds."""
    return ConnectionOptions(
        **{name: value for name, value in keywords.items() if name.startswith("tls")}
    )


class _Shown:
    """The progress line of a terminal."""

    def __init__(self, counting: Counting) -> None:
        self._counting = counting
        self._finished = 0
        self._at = time.monotonic()

    def show(self, now: Progress) -> None:
        at = time.monotonic()
        more = now.finished - self._finished
        note = (
            f"{counted(now.topics, 'topic')}, {counted(now.finished, 'message')} finished"
            f" ({rate_text(more, at - self._at, 'messages')}), {now.held:,} to be synced,"
            f" {size_text(now.size)}"
        )
        self._counting.advance(more, note)
        self._finished, self._at = now.finished, at


def _say_what_is_left_out(message: Message) -> None:
    log.warning(
        "the headers of messages of %s are not written, only the bodies; --raw writes nsqd's bytes"
        " with both",
        message.topic,
    )


def _say(text: str) -> None:
    mention(sys.stderr, text)
