"""What the user sees while it runs: a bar on a terminal when rich is there, plain lines otherwise.

Everything goes to stderr; stdout is the table's.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any


class Progress:
    """Plain lines: one for each cell, with what is done and what is left."""

    def __init__(self) -> None:
        self._done = self._total = 0
        self._began = time.monotonic()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def total(self, cells: int) -> None:
        self._total = cells

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def skip(self) -> None:
        """The next cell is left out."""
        self._done += 1

    def begin(self, text: str) -> None:
        """The next cell begins."""
        self._done += 1
        seconds = time.monotonic() - self._began
        self.say(f"[{self._done}/{self._total}, {seconds:.0f} s] {text}")


class Bar(Progress):
    """rich's bar."""

    def __init__(self) -> None:
        super().__init__()
        from rich import progress
        from rich.console import Console

        self._bar = progress.Progress(
            progress.TextColumn("{task.description:<44}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            # Redrawing costs CPU on the machine that is measured.
            refresh_per_second=2,
        )
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *ended: Any) -> None:
        self._bar.stop()

    def total(self, cells: int) -> None:
        super().total(cells)
        self._bar.update(self._task, total=cells)

    def say(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)

    def begin(self, text: str) -> None:
        self._bar.update(self._task, description=text, completed=self._done)
        self._done += 1


def choose() -> Progress:
    """The bar on a terminal where rich is installed, else plain lines."""
    if sys.stderr.isatty():
        try:
            return Bar()
        except ImportError:
            pass  # rich belongs to an extra
    return Progress()
