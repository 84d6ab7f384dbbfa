"""``gnsqsync demo``: two embedded nsqds, several publishers, one consumer, and a count at the end.

Knows the handlers that fail and the texts at the end. demo_lines publishes and verifies, demo_view
draws, and demo_spark runs ``--spark``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

import click

from gnsqsync import Message, Observer, Reader, Requeue
from gnsqsync.cli.common import Flag, Signals, rate_text, show_log, verbose_option
from gnsqsync.cli.demo_lines import (
    NEXT,
    TOPIC,
    Publishers,
    Verdict,
    numbers_text,
    read_lines,
    say_next,
    start_servers,
    verify,
)
from gnsqsync.cli.demo_view import View, make_view
from gnsqsync.commands.options_click import Number
from gnsqsync.embedded import Nsqd, Nsqlookupd
from gnsqsync.stats import counted

CHANNEL = "count"
MAX_IN_FLIGHT = 200
WORKERS = 4
# Places in the text (shares of its lines) at which some handlers fail. Each line fails once.
FAILURES_AT = (0.3, 0.7)
FAILURES_EACH = 16
FAILED_AGAIN_AFTER = 0.5
# Seconds without a new line after which unseen lines count as missing, once all are published.
PATIENCE = 15.0


class Consumer(Observer):
    """The handler and the lines it has seen. Several worker threads call it at a time.

    list.append and set.add are atomic, so there is no lock.
    """

    def __init__(self, lines: Sequence[bytes], work: float) -> None:
        self._lines = lines
        self._work = work
        self._failing = failing_numbers(len(lines))
        self.seen: set[int] = set()
        self.arrivals: list[int] = []
        self.wrong: list[str] = []
        self.failures: list[int] = []
        self.backoffs: list[tuple[int, float]] = []

    def handle(self, message: Message) -> None:
        """Record the line. Raise Requeue instead if the line is to fail and has not failed yet."""
        number_text, _, line = message.body.partition(b"\t")
        number = int(number_text) if number_text.isdigit() else 0
        if not 1 <= number <= len(self._lines) or self._lines[number - 1] != line:
            self.wrong.append(message.id)
            return
        if self._work:
            time.sleep(self._work)
        if number in self._failing and number not in self.failures:
            self.failures.append(number)
            raise Requeue(FAILED_AGAIN_AFTER)
        self.arrivals.append(number)
        self.seen.add(number)

    def backoff(self, level: int, seconds: float) -> None:
        self.backoffs.append((level, seconds))


def failing_numbers(total: int) -> frozenset[int]:
    """Return the numbers of lines whose handler fails once: enough in a row for a backoff."""
    failing: set[int] = set()
    for place in FAILURES_AT:
        first = int(total * place) + 1
        # A short file would be over before a pause ends, so fewer lines of it fail.
        each = min(FAILURES_EACH, total // 100 + 1)
        failing.update(range(first, min(first + each, total + 1)))
    return frozenset(failing)


@click.command(epilog="Example: gnsqsync demo /usr/share/dict/words, or gnsqsync demo --spark")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--publishers",
    default=4,
    show_default=True,
    type=click.IntRange(1, 64),
    metavar="N",
    help="Threads that publish.",
)
@click.option(
    "--work",
    type=Number(0, 1000),
    metavar="MS",
    help="Milliseconds that a handler needs for a line."
    " [default: 2 for the text that comes with gnsqsync, 0 for a file]",
)
@click.option(
    "--messages",
    type=click.IntRange(1, 10_000_000),
    metavar="N",
    help="Number of lines to publish. FILE is repeated if it has fewer."
    " [default: each line of FILE once; 200,000 with --spark]",
)
@click.option(
    "--spark",
    is_flag=True,
    help="Archive the lines as Parquet with Spark instead, kill one of its workers on the way,"
    " count what is in the files, and draw it.",
)
@click.option(
    "--keep",
    metavar="FOLDER",
    help="With --spark: leave archive, rollup and picture in this new or empty folder. [default:"
    " only the picture, in a temporary one]",
)
@verbose_option
def demo(
    file: str | None,
    publishers: int,
    work: float | None,
    messages: int | None,
    spark: bool,
    keep: str | None,
    verbose: bool,
) -> int:
    """See NSQ at work: no server and no set-up needed, done in a few seconds.

    Starts an nsqlookupd and two nsqds on free ports of this machine, publishes the lines of FILE
    from several threads, and consumes them again, while a table shows who does what. Without FILE
    the lines are a text that explains NSQ. Some handlers fail on purpose. In the end every line is
    compared with the original: exit code 0 if all of them arrived, 1 if not.

    With --spark there are three nsqds, and instead of the consumer the archive job of 'gnsqsync
    archive' (needs Java 17): exit code 0 if every line is in the Parquet files exactly once.
    """
    show_log(verbose)
    if spark:
        from gnsqsync.cli.demo_spark import run

        if work is not None:
            raise click.UsageError("--work is of the demo without --spark: Spark has no handlers")
        return run(file, messages, publishers, keep, verbose)
    if keep is not None:
        raise click.UsageError("--keep needs --spark: without it there are no files")
    lines = read_lines(file, messages)
    if work is None:
        work = 2.0 if file is None else 0.0
    stop = Flag()
    servers: list[Nsqd | Nsqlookupd] = []
    with ExitStack() as stack:
        signals = stack.enter_context(Signals(stop.set, lambda: [s.kill() for s in servers]))
        lookupd, nsqds = start_servers(stack, servers, 2, CHANNEL)
        consumer = Consumer(lines, work / 1000)
        reader = Reader(
            TOPIC,
            CHANNEL,
            consumer.handle,
            lookupd_http_addresses=[lookupd.http_address],
            lookupd_poll_interval=0.5,
            max_in_flight=MAX_IN_FLIGHT,
            concurrency=WORKERS,
            max_attempts=0,
            backoff_multiplier=0.25,
            max_backoff_duration=1.0,
            # In backoff the test message is asked of one nsqd, which may have no lines left. These
            # short times move the RDY to the other nsqd.
            low_rdy_idle_timeout=0.3,
            rdy_redistribute_interval=0.3,
            observer=consumer,
        )
        sender = Publishers(lines, [nsqd.tcp_address for nsqd in nsqds], publishers)
        stack.callback(sender.close)
        view = stack.enter_context(make_view(len(lines), MAX_IN_FLIGHT, WORKERS))
        began = time.monotonic()
        with reader:
            sender.start()
            watch(reader, sender, consumer, view, len(lines), stop)
            seconds = time.monotonic() - began
            connections = reader.stats().connections
        stats = reader.stats()
    if signals.received is not None:
        click.echo("stopped before the end")
        return 128 + signals.received
    verdict = verify(len(lines), consumer.arrivals, len(consumer.wrong))
    total = len(lines)
    click.echo(
        f"published {counted(sender.published, 'line')} from {counted(publishers, 'thread')}"
        f" in {sender.seconds:.2f} s:"
        f" {rate_text(sender.published, sender.seconds, 'lines')}"
    )
    click.echo(
        f"consumed  {counted(len(consumer.seen), 'line')} in {seconds:.2f} s:"
        f" {rate_text(len(consumer.seen), seconds, 'lines')}, by discovery from"
        f" {', '.join(f'{c.address} ({c.received:,})' for c in connections)}"
    )
    pauses = [pause for level, pause in consumer.backoffs if level]
    click.echo(
        f"{counted(len(consumer.failures), 'handler')} failed on purpose,"
        f" {counted(stats.requeued, 'requeue')},"
        f" {counted(len(pauses), 'backoff pause')} ({sum(pauses):.1f} s together)"
    )
    return report(verdict, total)


def watch(
    reader: Reader, sender: Publishers, consumer: Consumer, view: View, total: int, stop: Flag
) -> None:
    """Show progress until all lines were seen, ``stop`` is set, or no line comes for PATIENCE."""
    last_seen, last_change = -1, time.monotonic()
    while not stop.wait(0.1):
        done = sender.is_done()
        seen = len(consumer.seen)
        now = time.monotonic()
        if seen != last_seen or not done:
            last_seen, last_change = seen, now
        view.show(sender.published, seen, len(consumer.failures), reader.stats(), consumer.backoffs)
        if (done and seen == total) or now - last_change > PATIENCE:
            return


def report(verdict: Verdict, total: int) -> int:
    """Print the verdict on the lines. Return the exit code."""
    if verdict.repeated:
        click.echo(
            f"delivered more than once, as NSQ may do: {counted(len(verdict.repeated), 'line')}"
        )
    if verdict.wrong:
        click.echo(
            f"gnsqsync: not what was published: {counted(verdict.wrong, 'message')}", err=True
        )
    if verdict.missing:
        click.echo(
            f"gnsqsync: {len(verdict.missing):,} of {counted(total, 'line')} did not arrive:"
            f" {numbers_text(verdict.missing)}",
            err=True,
        )
    if not verdict.good:
        return 1
    click.echo(f"every one of the {total:,} lines arrived")
    say_next(NEXT)
    return 0
