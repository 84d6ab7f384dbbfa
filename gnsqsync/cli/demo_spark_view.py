"""The view of ``gnsqsync demo --spark`` while it runs: bars and a table, or plain lines.

Knows numbers and the terminal. Knows no server and no Spark.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from gnsqsync.cli.common import PLAIN_INTERVAL, Scope, rate_text

# Seconds over which rates are averaged.
_RECENT = 5.0


@dataclass(frozen=True, slots=True)
class NsqdRow:
    """The figures of the archive's channel on one nsqd."""

    address: str
    waiting: int
    in_flight: int
    finished: int
    timed_out: int


def make_view(total: int) -> View:
    """Return bars and a table if stdout is a terminal, else a line every few seconds."""
    return LiveView(total) if sys.stdout.isatty() else View(total)


class View(Scope):
    """Plain lines on stdout: the counts every few seconds."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._next_line = time.monotonic() + PLAIN_INTERVAL

    def say(self, text: str) -> None:
        """Print a line that stays."""
        click.echo(text)

    def show(self, published: int, archived: int, batches: int, nsqds: Sequence[NsqdRow]) -> None:
        """Show the present numbers."""
        now = time.monotonic()
        if now >= self._next_line:
            self._next_line = now + PLAIN_INTERVAL
            click.echo(
                f"{published:,} of {self._total:,} lines published, {archived:,} in Parquet files"
                f" after {batches} {'batch' if batches == 1 else 'batches'},"
                f" {sum(nsqd.in_flight for nsqd in nsqds):,} in flight"
            )


class LiveView(View):
    """Two bars with their rates and the table of nsqds. Each ``show`` redraws them."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self._bars = Progress(
            TextColumn("{task.description:9}"),
            BarColumn(40),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:>14}"),
            TimeElapsedColumn(),
            auto_refresh=False,
        )
        self._published = self._bars.add_task("published", total=total, rate="")
        self._archived = self._bars.add_task("archived", total=total, rate="")
        self._recent: deque[tuple[float, int, int]] = deque()
        self._live = Live(console=Console(), auto_refresh=False)

    def begin(self) -> None:
        self._live.start()

    def end(self) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self._live.console.print(Text(text, style="bold yellow"))

    def show(self, published: int, archived: int, batches: int, nsqds: Sequence[NsqdRow]) -> None:
        now = time.monotonic()
        self._recent.append((now, published, archived))
        while self._recent[0][0] < now - _RECENT:
            self._recent.popleft()
        then, published_then, archived_then = self._recent[0]
        for task, count, before in (
            (self._published, published, published_then),
            (self._archived, archived, archived_then),
        ):
            rate = rate_text(count - before, now - then, "lines") if count > before else ""
            self._bars.update(task, completed=count, rate=rate)
        title = f"archive: {batches} Spark batches so far"
        table = Table(title=title, title_justify="left", box=None, header_style="bold")
        table.add_column("nsqd")
        for heading in ("waiting", "in flight", "finished", "timed out"):
            table.add_column(heading, justify="right", min_width=9)
        for nsqd in nsqds:
            numbers = (nsqd.waiting, nsqd.in_flight, nsqd.finished, nsqd.timed_out)
            table.add_row(nsqd.address, *(f"{number:,}" for number in numbers))
        self._live.update(Group(self._bars.get_renderable(), Text(), table), refresh=True)
