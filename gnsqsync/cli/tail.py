"""``gnsqsync tail``: show the messages that are published to a topic from now on."""

from __future__ import annotations

import base64
import json
import random
import re
import sys
from typing import Any

import click

from gnsqsync import Message, Reader, Requeue
from gnsqsync.cli.common import (
    Signals,
    connection_keywords,
    connection_options,
    lookupd_option,
    nsqd_option,
    raw_option,
    reader_addresses,
)
from gnsqsync.commands.envelopes import OpenEnvelopes
from gnsqsync.commands.options import JSON
from gnsqsync.commands.options_click import as_click
from gnsqsync.process.output import mention, nowhere, send_nowhere
from gnsqsync.stats import counted

MAX_IN_FLIGHT = 200
# Seconds without a message after which ``tail --count`` says how many are missing.
QUIET = 5.0


def parse_count(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return a number of messages, 1 or more; a callback of click."""
    if value is None:
        return None
    # int() would refuse other digits, such as ², and numbers of thousands of digits.
    if re.fullmatch("0*[1-9][0-9]{,17}", value) is None:
        raise click.BadParameter(
            f"{value!r} is not a number of messages, 1 or more (an nsqd's address goes to -t)"
        )
    return int(value)


class Printer:
    """A handler that writes messages to stdout and stops the Reader after the last wanted one.

    It runs on the Reader's only worker thread.
    """

    def __init__(self, topic: str, count: int | None, as_json: bool) -> None:
        self._topic = topic
        self._left = count
        self._as_json = as_json
        self.shown: int = 0
        self.reader: Reader | None = None
        # The error of standard output; None also if only its reader has left.
        self.failure: OSError | None = None

    def __call__(self, message: Message) -> None:
        if self._left == 0:
            # On a channel that the user named, other consumers may want the message.
            raise Requeue(0, backoff=False)
        data = self._json(message) if self._as_json else message.body
        try:
            sys.stdout.buffer.write(data + b"\n")
            sys.stdout.buffer.flush()
        except OSError as error:
            # In `gnsqsync tail orders | head -3` head ends first. Otherwise a disk may be full.
            if not isinstance(error, BrokenPipeError):
                self.failure = error
            send_nowhere(sys.stdout)
            self._left = 0
            self._stop()
            raise Requeue(0, backoff=False) from None
        self.shown += 1
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self._stop()

    def _stop(self) -> None:
        if self.reader is not None:
            self.reader.stop()

    def _json(self, message: Message) -> bytes:
        entry: dict[str, Any] = {
            "topic": self._topic,
            "id": message.id,
            "timestamp": message.timestamp,
            "attempts": message.attempts,
            "nsqd_address": message.nsqd_address,
        }
        if message.headers:
            entry["headers"] = dict(message.headers)
        try:
            entry["body"] = message.body.decode()
        except UnicodeDecodeError:
            entry["body_base64"] = base64.b64encode(message.body).decode()
        return json.dumps(entry).encode()


def say_what_is_missing(reader: Reader, printer: Printer, count: int, *, is_own: bool) -> None:
    """Wait until the Reader ends. If no message comes for QUIET seconds before, say so once.

    ``is_own``: True for tail's own channel, which nsqd keeps in its memory only.
    """
    shown = -1
    while shown != printer.shown:
        shown = printer.shown
        if reader.join(QUIET) is not None:
            return
    text = f"tail: {shown} of {counted(count, 'message')} so far; waits for more, until Ctrl-C"
    if is_own:
        text += "; nsqd drops what does not fit in its memory (--mem-queue-size), see --help"
    mention(sys.stderr, text)


@click.command(
    epilog="""\b
Example: gnsqsync tail orders
         gnsqsync tail orders -n 10 -l 127.0.0.1:4161
         gnsqsync tail orders --json | jq -r .body

--json prints an object per line: topic, id, timestamp (ns), attempts, nsqd_address, headers where
the message has some, and body, or body_base64 where that is not UTF-8.

Exit codes: 0 stopped by a signal, or --count messages were shown; 1 no nsqd accepts the
connection, or standard output cannot be written; 2 wrong usage.
""",
)
@click.argument("topic")
@nsqd_option()
@lookupd_option()
@click.option(
    "--count",
    "-n",
    callback=parse_count,
    metavar="COUNT",
    help="Stop after COUNT messages.",
)
@click.option(
    "--channel",
    "-c",
    metavar="CHANNEL",
    help="Take messages from this channel; its other consumers do not get them.",
)
@as_click(JSON, help="One JSON object per message.")
@raw_option("Print nsqd's bytes, with the envelope of the headers, if there is one.")
@connection_options
def tail(
    topic: str,
    nsqd_tcp_addresses: tuple[str, ...],
    lookupd_http_addresses: tuple[str, ...],
    count: int | None,
    channel: str | None,
    as_json: bool,
    raw: bool,
    **options: Any,
) -> int:
    """Print the messages of TOPIC to standard output, each with a newline behind it.

    Of a message with headers it prints the body; --json prints the headers, too.

    It listens on a channel of its own, which nsqd deletes afterwards. So other consumers get all
    messages as before, and you see only messages that are published from now on. One exception:
    messages that wait in a topic without any channel go to its first channel, which is this one.
    Ctrl-C ends.

    It may miss messages: for such a channel nsqd keeps --mem-queue-size messages in its memory, and
    drops the rest silently; with --mem-queue-size=0 it drops nearly all of a burst. With --channel
    and a new name nothing is dropped: that channel is an ordinary one, and stays until somebody
    deletes it.
    """
    if sys.stdout is nowhere():
        raise click.ClickException("standard output is closed")
    printer = Printer(topic, count, as_json)
    reader = Reader(
        topic,
        channel or f"tail{random.randrange(10**6):06}#ephemeral",
        printer,
        max_in_flight=min(MAX_IN_FLIGHT, count or MAX_IN_FLIGHT),
        # A tail only looks, so it gives no message up, however often the message came back.
        max_attempts=0,
        middleware=[] if raw else [OpenEnvelopes()],
        **reader_addresses(nsqd_tcp_addresses, lookupd_http_addresses),
        **connection_keywords(options),
    )
    printer.reader = reader
    with Signals(reader.stop):
        reader.start(block=False)
        if count is not None:
            say_what_is_missing(reader, printer, count, is_own=channel is None)
        reader.join()
    if printer.failure is not None:
        raise click.ClickException(f"cannot write to standard output: {printer.failure.strerror}")
    return 0
