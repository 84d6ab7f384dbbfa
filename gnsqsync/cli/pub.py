"""``gnsqsync pub``: publish one message per line of a file or of standard input."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from typing import Any, Literal

import click

from gnsqsync import Writer, envelope
from gnsqsync.cli.common import (
    Signals,
    connection_keywords,
    connection_options,
    counts_option,
    lookupd_option,
    nsqd_option,
    rate_text,
    size_text,
)
from gnsqsync.cli.progress import Counting
from gnsqsync.commands.options_click import Number
from gnsqsync.errors import ConfigError, NSQError, PublishError
from gnsqsync.options import check_duration, check_topic
from gnsqsync.process.output import CannotWrite, mention, say
from gnsqsync.stats import counted

# Upper bound of one read, in bytes. A read returns the bytes that are there, so slow lines are
# published at once, and fast lines in batches.
READ_SIZE = 65536

# Bytes: nsqd's default --max-body-size, and the longest line that fits into an MPUB with the count
# and its own length. A longer line is sent by PUB, whose only limit is --max-msg-size.
MAX_BODY_SIZE = 5242880
LONGEST_IN_MPUB = MAX_BODY_SIZE - 8


class Interrupted(Exception):
    """A signal arrived during a read of input, which would otherwise go on waiting."""


class Input:
    """The lines of a file descriptor, as they arrive, without newlines."""

    def __init__(self, descriptor: int, longest: int) -> None:
        self._descriptor = descriptor
        self._longest = longest
        self._stopped = False
        self._reading = False
        status = os.fstat(descriptor)
        self.size: int | None = status.st_size if stat.S_ISREG(status.st_mode) else None

    def stop(self) -> None:
        """End the lines. The signal handler calls this, on the thread that reads."""
        self._stopped = True
        if self._reading:
            raise Interrupted

    def chunks(self) -> Iterator[tuple[list[bytes], int]]:
        """Yield (lines, bytes read for them). A last line needs no newline."""
        rest = b""
        while not self._stopped:
            try:
                self._reading = True
                data = b"" if self._stopped else os.read(self._descriptor, READ_SIZE)
                self._reading = False
            except Interrupted:
                return
            if not data:
                if rest and not self._stopped:
                    yield [rest], 0
                return
            if b"\n" not in data:
                rest += data
                if len(rest) > self._longest:
                    # The line is too long already, so the rest of it is not read into memory.
                    yield [rest], len(data)
                    return
                continue
            *lines, rest = (rest + data).split(b"\n")
            yield lines, len(data)


class _Lines(click.Path):
    """The path of a file of messages. Other programs take a body in its place."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if value != "-" and not os.path.exists(value):
            self.fail(
                f"there is no file {value!r}; the messages are lines of a file or of standard"
                " input, as in: echo BODY | gnsqsync pub TOPIC",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


class Counts:
    """The counts of the lines so far."""

    def __init__(self) -> None:
        self.lines = 0
        self.published: int = 0
        self.empty = 0
        self.size: int = 0

    def add(self, bodies: list[bytes]) -> None:
        """Count published bodies."""
        self.published += len(bodies)
        self.size += sum(map(len, bodies))


class Sender:
    """A publisher of lines that counts the lines that nsqd has accepted.

    ``headers``: the headers in the envelope of each message; None: no envelopes.
    """

    def __init__(
        self,
        writer: Writer,
        topic: str,
        counts: Counts,
        max_msg_size: int,
        *,
        batch: int,
        defer: float | None,
        headers: dict[str, str] | None,
    ) -> None:
        self._writer = writer
        self._topic = topic
        self._counts = counts
        self._max_msg_size = max_msg_size
        self._batch = batch
        self._defer = defer
        self._headers = headers
        # Bytes of headers before each line.
        self._head = 0 if headers is None else len(_head(headers))

    def publish(self, lines: list[bytes]) -> None:
        """Publish all lines except empty ones. NSQError names the line that failed."""
        counts = self._counts
        bodies: list[bytes] = []
        for line in lines:
            counts.lines += 1
            if not line:
                counts.empty += 1
                continue
            size = self._head + len(line)
            if size > self._max_msg_size:
                self._send(bodies)
                with_headers = f", {self._head} of them for the headers" if self._head else ""
                raise NSQError(
                    f"line {counts.lines} is longer than --max-msg-size allows,"
                    f" {self._max_msg_size} bytes{with_headers} (and nsqd's own --max-msg-size must"
                    " allow it too)"
                )
            if self._defer is not None or size > LONGEST_IN_MPUB:
                self._send(bodies)
                self._send_alone(line)
                bodies = []
                continue
            bodies.append(line)
            if len(bodies) == self._batch:
                self._send(bodies)
                bodies = []
        self._send(bodies)

    def _send(self, bodies: list[bytes]) -> None:
        if not bodies:
            return
        try:
            self._writer.publish_many(self._topic, bodies, headers=self._headers)
        except PublishError as error:
            # Lines in several MPUBs may be confirmed in part.
            self._counts.add(bodies[: error.acknowledged])
            raise
        self._counts.add(bodies)

    def _send_alone(self, line: bytes) -> None:
        try:
            self._writer.publish(self._topic, line, defer=self._defer, headers=self._headers)
        except PublishError as error:
            raise NSQError(f"line {self._counts.lines}: {error}") from error
        self._counts.add([line])


def parse_headers(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Return the headers of ``NAME=VALUE`` words; a callback of click."""
    headers: dict[str, str] = {}
    for value in values:
        name, equals, text = value.partition("=")
        if not equals:
            raise click.BadParameter(f"{value!r} is not of the form NAME=VALUE")
        if name in headers:
            raise click.BadParameter(f"{name!r} is given twice; a message has each header once")
        if name == envelope.KEY:
            raise click.BadParameter("each message gets a 'key' of its own; leave it out")
        headers[name] = text
    try:
        _head(headers)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    return headers


def _head(headers: dict[str, str]) -> bytes:
    return envelope.encode_head({**headers, envelope.KEY: envelope.new_key()})


@click.command(
    epilog="""\b
Example: printf 'one\\ntwo\\n' | gnsqsync pub orders
         gnsqsync pub orders orders.jsonl -t 10.0.0.1:4150 -t 10.0.0.2:4150 --policy failover
         gnsqsync pub orders orders.jsonl --header source=import
         gnsqsync pub orders orders.jsonl --json | jq .published

--json prints one object: topic, published, bytes, empty_lines_skipped, seconds, error (or null).

Exit codes: 0 nsqd accepted every line; 1 a line was not accepted (the counts say how many were), or
the counts cannot be printed; 2 wrong usage; 128 plus the number of the signal that stopped it.
""",
)
@click.argument("topic")
@click.argument("file", default="-", type=_Lines(exists=True, dir_okay=False, allow_dash=True))
@nsqd_option()
@lookupd_option()
@click.option(
    "--defer",
    type=Number(0),
    metavar="SECONDS",
    help="Seconds after which each message is delivered; one command to nsqd per message (DPUB).",
)
@click.option(
    "--header",
    "given",
    multiple=True,
    callback=parse_headers,
    metavar="NAME=VALUE",
    help="Publish each message in an envelope with this header; may be given several times."
    " Implies --headers.",
)
@click.option(
    "--headers",
    is_flag=True,
    help="Publish each message in an envelope, with a header 'key' of its own. Consumers must open"
    " envelopes.",
)
@click.option(
    "--batch",
    default=200,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Messages per command to nsqd (MPUB) at most.",
)
@click.option(
    "--policy",
    type=click.Choice(["round_robin", "failover"]),
    default="round_robin",
    show_default=True,
    help="With several nsqds: share the messages out, or use the first one that works.",
)
@click.option(
    "--timeout",
    default=5.0,
    show_default=True,
    type=float,
    metavar="SECONDS",
    help="Seconds in which nsqd must accept a batch.",
)
@click.option(
    "--max-msg-size",
    default=1048576,
    show_default=True,
    type=click.IntRange(1),
    metavar="BYTES",
    help="The value of nsqd's own flag.",
)
@counts_option
@connection_options
def pub(
    topic: str,
    file: str,
    nsqd_tcp_addresses: tuple[str, ...],
    lookupd_http_addresses: tuple[str, ...],
    defer: float | None,
    given: dict[str, str],
    headers: bool,
    batch: int,
    policy: Literal["round_robin", "failover"],
    timeout: float,
    max_msg_size: int,
    as_json: bool,
    **options: Any,
) -> int:
    """Publish each line of FILE, or of standard input, as a message to TOPIC.

    Empty lines are skipped, because NSQ has no empty messages; everything else of a line is sent
    as it is. When a batch fails, the counts say how many lines were accepted before it.
    """
    # A bad name fails even if there is no line to publish.
    check_topic(topic)
    if defer is not None:
        check_duration("defer", defer, finite=True)
    if file == "-" and sys.stdin is None:
        raise click.UsageError("standard input is closed; name a FILE")
    wrapped = given if given or headers else None
    counts = Counts()
    failure: NSQError | None = None
    began = time.monotonic()
    writer = Writer(
        list(nsqd_tcp_addresses) or None,
        lookupd_http_addresses=list(lookupd_http_addresses),
        policy=policy,
        publish_timeout=timeout,
        # An outage may wait: only the next lines of the input are delayed.
        outage="wait",
        max_msg_size=max_msg_size,
        max_body_size=MAX_BODY_SIZE,
        # nsqd checks its own limit, so the Writer need not refuse a longer delay.
        max_defer=max(defer or 0.0, 3600.0),
        headers=wrapped is not None,
        **connection_keywords(options),
    )
    sender = Sender(writer, topic, counts, max_msg_size, batch=batch, defer=defer, headers=wrapped)
    descriptor = sys.stdin.fileno() if file == "-" else os.open(file, os.O_RDONLY)
    source = Input(descriptor, max_msg_size)
    typed = os.isatty(descriptor)
    if typed:
        mention(sys.stderr, "type messages, one per line; Ctrl-D ends")
    with writer, Signals(source.stop) as signals:
        with Counting("published", source.size, quiet=as_json or typed) as counting:
            try:
                for lines, read in source.chunks():
                    sender.publish(lines)
                    counting.advance(read, counted(counts.published, "message"))
            except NSQError as error:
                failure = error
    if file != "-":
        os.close(descriptor)
    try:
        _report(topic, counts, time.monotonic() - began, failure, as_json)
    except CannotWrite as error:
        if failure is None:
            failure = NSQError(
                f"{counted(counts.published, 'message')} published to {topic}, then: {error}"
            )
    if failure is not None:
        raise failure
    return 0 if signals.received is None else 128 + signals.received


def _report(
    topic: str, counts: Counts, seconds: float, failure: NSQError | None, as_json: bool
) -> None:
    if as_json:
        entry = {
            "topic": topic,
            "published": counts.published,
            "bytes": counts.size,
            "empty_lines_skipped": counts.empty,
            "seconds": round(seconds, 3),
            "error": str(failure) if failure is not None else None,
        }
        say(sys.stdout, json.dumps(entry))
        return
    skipped = f", {counted(counts.empty, 'empty line')} skipped" if counts.empty else ""
    say(
        sys.stdout,
        f"published {counted(counts.published, 'message')} ({size_text(counts.size)})"
        f" to {topic}{skipped}"
        f" in {seconds:.2f} s: {rate_text(counts.published, seconds, 'messages')}",
    )
