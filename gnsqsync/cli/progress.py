"""Progress of a running command: bars on a terminal, else a line every few seconds.

Knows the terminal. Must not know what a command does.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from gnsqsync.cli.common import Scope, rate_text
from gnsqsync.process.output import mention

# Seconds between two lines of a command that is not on a terminal.
_INTERVAL = 5.0


class Rhythm:
    """The moments of lines that a command prints every few seconds, the first after ``first``."""

    def __init__(self, first: float = _INTERVAL) -> None:
        self._next = time.monotonic() + first

    def is_due(self) -> bool:
        """Return True if a line is due. The next one is due an interval later."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + _INTERVAL
        return True


class Counting(Scope):
    """The progress of a job on stderr: a bar on a terminal, else a line every few seconds."""

    def __init__(self, what: str, total: int | None, *, quiet: bool = False) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._rhythm = Rhythm()
        self._quiet = quiet
        self._bar: Progress | None = None
        if sys.stderr.isatty() and not quiet:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}%" if total else ""),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(what, total=total, note="")

    def begin(self) -> None:
        if self._bar is not None:
            self._bar.start()

    def end(self) -> None:
        if self._bar is not None:
            with contextlib.suppress(OSError):  # The terminal may be gone.
                self._bar.stop()

    def advance(self, amount: int, note: str) -> None:
        """Add ``amount`` to the done part of the total. ``note`` shows it in the user's terms."""
        self._done += amount
        if self._bar is not None:
            self._bar.update(self._task, advance=amount, note=note)
            return
        if not self._quiet and self._rhythm.is_due():
            share = f" ({self._done * 100 // self._total}%)" if self._total else ""
            mention(sys.stderr, f"{self._what}: {note}{share}")


class Figures(Scope):
    """Bars and a table of servers if stdout is a terminal, else a line every few seconds.

    ``bars``: names of counts that go up to ``total``. ``headings``: names of a server's numbers.
    """

    def __init__(self, bars: Iterable[str], total: int, headings: Iterable[str]) -> None:
        self._headings = headings
        self._rhythm = Rhythm()
        self._bars = Progress(
            TextColumn("{task.description:9}"),
            BarColumn(40),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:>14}"),
            TimeElapsedColumn(),
            auto_refresh=False,
            speed_estimate_period=5.0,
        )
        for bar in bars:
            self._bars.add_task(bar, total=total, rate="")
        self._live = Live(auto_refresh=False) if sys.stdout.isatty() else None

    def begin(self) -> None:
        if self._live is not None:
            self._live.start()

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()

    def show(
        self,
        counts: Iterable[int],
        line: str,
        title: str,
        rows: Iterable[tuple[str, *tuple[int, ...]]],
        state: Text | str = "",
    ) -> None:
        """Show ``line``, or bars of these counts, a table of address and numbers, and the state."""
        if self._live is None:
            if self._rhythm.is_due():
                click.echo(line)
            return
        for task, count in zip(self._bars.tasks, counts, strict=True):
            rate = rate_text(round(task.speed), 1.0, "lines") if task.speed else ""
            self._bars.update(task.id, completed=count, rate=rate)
        table = Table("nsqd", title=title, title_justify="left", box=None, header_style="bold")
        for heading in self._headings:
            table.add_column(heading, justify="right", min_width=9)
        for address, *numbers in sorted(rows):
            table.add_row(address, *(f"{number:,}" for number in numbers))
        self._live.update(Group(self._bars.get_renderable(), "", table, state), refresh=True)
