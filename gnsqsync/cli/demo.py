"""``gnsqsync demo``: two embedded nsqds, several publishers, one consumer, and a count at the end.

Knows the handlers that fail. demo_parts publishes and judges; demo_spark runs ``--spark``.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

import click
from rich.text import Text

from gnsqsync import Message, Observer, Reader, Requeue
from gnsqsync.cli import demo_parts as parts
from gnsqsync.cli.common import Flag, Signals, show_log, verbose_option
from gnsqsync.cli.progress import Figures
from gnsqsync.commands.options_click import Number
from gnsqsync.stats import counted

CHANNEL = "count"
MAX_IN_FLIGHT = 200
WORKERS = 4
HEADINGS = "RDY", "in flight", "received", "finished", "requeued"
# Places in the run (shares of its lines) at which handlers fail, one after the other. 15 failures
# with no success between them make a Reader pause. A few successes may still end meanwhile.
FAILURES_AT = (0.3, 0.7)
FAILURES_EACH = 20
FAILED_AGAIN_AFTER = 0.5
# Seconds without a new line after which unseen lines count as missing, once all are published.
PATIENCE = 15.0


class Demo(Observer):
    """A run: the handler, the numbers it has seen, and the figures of the Reader.

    Several worker threads call the handler at a time. list.append and set.add are atomic, so there
    is no lock.
    """

    def __init__(self, lines: Sequence[bytes], work: float) -> None:
        self._lines = lines
        self._work = work
        # Numbers of calls of the handler. next() is atomic, too.
        self._calls = itertools.count(1)
        self._failing = failing_calls(len(lines))
        self._seen: set[int] = set()
        self._arrivals: list[int] = []
        self._failures: list[int] = []
        self._pauses: list[float] = []
        self._backoff_text = "no backoff so far"

    def handle(self, message: Message) -> None:
        """Record the line. Raise Requeue instead if this call is to fail."""
        number = parts.number_of(message.body, self._lines)
        if self._work:
            time.sleep(self._work)
        if next(self._calls) in self._failing:
            self._failures.append(number)
            raise Requeue(FAILED_AGAIN_AFTER)
        self._arrivals.append(number)
        if number:
            self._seen.add(number)

    def backoff(self, level: int, seconds: float) -> None:
        self._backoff_text = "backoff is over: full speed again"
        if level:
            self._pauses.append(seconds)
            pause = f"no messages for {seconds:.2g} s, then one as a test"
            self._backoff_text = f"backoff level {level}: {pause}"
        if not sys.stdout.isatty():
            click.echo(self._backoff_text)

    def run(self, publishers: int) -> int:
        """Publish and consume all lines, and print the figures. Return the exit code."""
        stop = Flag()
        with ExitStack() as stack:
            signals = stack.enter_context(Signals(stop.set))
            lookupd, nsqds = parts.start_servers(stack, 2, CHANNEL)
            reader = Reader(
                parts.TOPIC,
                CHANNEL,
                self.handle,
                lookupd_http_addresses=[lookupd.http_address],
                lookupd_poll_interval=0.5,
                max_in_flight=MAX_IN_FLIGHT,
                concurrency=WORKERS,
                max_attempts=0,
                backoff_multiplier=0.25,
                max_backoff_duration=1.0,
                # In backoff the test message is asked of one nsqd, which may have no lines left.
                # Short times, which move the RDY to the other nsqd.
                low_rdy_idle_timeout=0.3,
                rdy_redistribute_interval=0.3,
                observer=self,
            )
            sender = parts.Publishers(self._lines, nsqds, publishers)
            view = Figures(("published", "consumed"), len(self._lines), HEADINGS)
            for each in (view, reader, sender):
                stack.enter_context(each)
            seconds = self._watch(reader, sender, view, stop)
            sources = [f"{c.address} ({c.received:,})" for c in reader.stats().connections]
        if signals.received is not None:
            click.echo("stopped before the end")
            return 128 + signals.received
        seen, failed = len(self._seen), counted(len(self._failures), "handler")
        rate, pauses = parts.rate_of(seen, seconds), counted(len(self._pauses), "backoff pause")
        click.echo(sender)
        click.echo(f"consumed  {seen:,} lines in {rate}, by discovery from {', '.join(sources)}")
        click.echo(
            f"{failed} failed on purpose, {counted(reader.stats().requeued, 'requeue')},"
            f" {pauses} ({sum(self._pauses):.1f} s together)"
        )
        return parts.judge(len(self._lines), self._arrivals) or parts.say_next(parts.NEXT)

    def _watch(self, reader: Reader, sender: parts.Publishers, view: Figures, stop: Flag) -> float:
        """Show progress until all lines are seen or none comes for PATIENCE. Return the seconds."""
        total, last, began = len(self._lines), -1, time.monotonic()
        now = changed = began
        while not stop.wait(0.1):
            done, published, seen = sender.is_done(), sender.published, len(self._seen)
            now = time.monotonic()
            if seen != last or not done:
                last, changed = seen, now
            stats, failed = reader.stats(), len(self._failures)
            line = f"{published:,} of {total:,} lines published, {seen:,} consumed"
            state = f"{counted(failed, 'handler')} failed on purpose; {self._backoff_text}"
            view.show(
                (published, seen),
                f"{line}, {stats.in_flight:,} in flight, {failed} failed",
                f"consumer: {counted(WORKERS, 'worker')}, max_in_flight={MAX_IN_FLIGHT}",
                [
                    (c.address, c.rdy, c.in_flight, c.received, c.finished, c.requeued)
                    for c in stats.connections
                ],
                Text(state, "bold yellow" if stats.is_in_backoff else ""),
            )
            if (done and seen == total) or now - changed > PATIENCE:
                break
        return now - began


def failing_calls(total: int) -> frozenset[int]:
    """Return the numbers of the calls that fail: enough in a row for a backoff."""
    # A short file would be over before a pause ends, so fewer lines of it fail.
    each = min(FAILURES_EACH, total // 100 + 1)
    starts = [int(total * place) + 1 for place in FAILURES_AT]
    return frozenset(n for start in starts for n in range(start, min(start + each, total + 1)))


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
    if work is None:
        work = 2.0 if file is None else 0.0
    return Demo(parts.read_lines(file, messages), work / 1000).run(publishers)
