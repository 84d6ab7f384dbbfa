"""The view of ``gnsqsync demo`` while it runs: bars and a table, or plain lines.

Knows numbers and the terminal. Knows no server, Reader or Writer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from gnsqsync.cli.common import PLAIN_INTERVAL, Scope
from gnsqsync.stats import counted

if TYPE_CHECKING:
    from gnsqsync.stats import ReaderStats

Backoffs = Sequence[tuple[int, float]]


def make_view(total: int, max_in_flight: int, workers: int) -> View:
    """Return bars and a table if stdout is a terminal, else a line every few seconds."""
    if sys.stdout.isatty():
        return LiveView(total, max_in_flight, workers)
    return View(total)


class View(Scope):
    """Plain lines on stdout: each backoff when it happens, the counts every few seconds."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._told = 0
        self._next_line = time.monotonic() + PLAIN_INTERVAL

    def show(
        self, published: int, seen: int, failures: int, stats: ReaderStats, backoffs: Backoffs
    ) -> None:
        """Show the present numbers. ``backoffs`` are (level, seconds), oldest first."""
        for level, seconds in backoffs[self._told :]:
            click.echo(backoff_text(level, seconds))
            self._told += 1
        now = time.monotonic()
        if now >= self._next_line:
            self._next_line = now + PLAIN_INTERVAL
            click.echo(
                f"{published:,} of {self._total:,} lines published, {seen:,} consumed,"
                f" {stats.in_flight:,} in flight, {failures} failed"
            )


class LiveView(View):
    """Two bars, the table of connections and the last backoff. Each ``show`` redraws them."""

    def __init__(self, total: int, max_in_flight: int, workers: int) -> None:
        super().__init__(total)
        self._title = f"consumer: {counted(workers, 'worker')}, max_in_flight={max_in_flight}"
        self._bars = Progress(
            TextColumn("{task.description:9}"),
            BarColumn(40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            auto_refresh=False,
        )
        self._published = self._bars.add_task("published", total=total)
        self._consumed = self._bars.add_task("consumed", total=total)
        self._live = Live(console=Console(), auto_refresh=False)

    def begin(self) -> None:
        self._live.start()

    def end(self) -> None:
        self._live.stop()

    def show(
        self, published: int, seen: int, failures: int, stats: ReaderStats, backoffs: Backoffs
    ) -> None:
        self._bars.update(self._published, completed=published)
        self._bars.update(self._consumed, completed=seen)
        table = Table(title=self._title, title_justify="left", box=None, header_style="bold")
        table.add_column("nsqd")
        for heading in ("RDY", "in flight", "received", "finished", "requeued"):
            table.add_column(heading, justify="right", min_width=9)
        for connection in sorted(stats.connections, key=lambda each: each.address):
            numbers = (
                connection.rdy,
                connection.in_flight,
                connection.received,
                connection.finished,
                connection.requeued,
            )
            table.add_row(connection.address, *(f"{number:,}" for number in numbers))
        if not stats.connections:
            table.add_row("(asking nsqlookupd)")
        last = backoff_text(*backoffs[-1]) if backoffs else "no backoff so far"
        state = Text(f"{counted(failures, 'handler')} failed on purpose; {last}")
        if stats.is_in_backoff:
            state.stylize("bold yellow")
        self._live.update(Group(self._bars.get_renderable(), Text(), table, state), refresh=True)


def backoff_text(level: int, seconds: float) -> str:
    """Return one step of the backoff in words."""
    if not level:
        return "backoff is over: full speed again"
    return f"backoff level {level}: no messages for {seconds:.2g} s, then one as a test"
