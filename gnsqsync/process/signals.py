"""The signals that end a program, and the meaning of a second one. Only commands use this.

Knows signals and the terminal. Must not know what a program does when it ends. Handlers are
installed inside of a ``with``, and the earlier ones are restored at its end.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["Requests", "ending", "handled", "tell_terminal", "told_on_gevent"]

# Signals whose repetition means nothing new for a program that ends already.
_ASKING = signal.SIGTERM, signal.SIGHUP


def ending() -> tuple[signal.Signals, ...]:
    """Return the signals that ask this program to end.

    SIGHUP is one of them: a closed terminal sends it, and so does ``ExecReload=kill -HUP``. If
    SIGHUP is ignored, as under ``nohup``, it stays ignored. Other signals keep their usual meaning:
    SIGQUIT ends Python at once, with a core.
    """
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        return signal.SIGTERM, signal.SIGINT
    return signal.SIGTERM, signal.SIGINT, signal.SIGHUP


@contextmanager
def handled(
    numbers: Iterable[signal.Signals],
    handler: Callable[[int, FrameType | None], object],
    *,
    is_last: bool = False,
) -> Iterator[None]:
    """Call ``handler`` for these signals inside of the block.

    A program that got SIGHUP ends, so SIGHUP stays ignored after the ``with``: a closed terminal
    sends it twice, and the second one would kill the program while it ends. With ``is_last`` the
    program ends after the ``with`` in any case, so SIGTERM and SIGHUP are ignored from then on if
    they would kill it.

    ValueError on any thread but the main one, where Python allows no signal handlers.
    """
    before: dict[signal.Signals, Any] = {}
    came: set[int] = set()

    def note(number: int, frame: FrameType | None) -> None:
        came.add(number)
        handler(number, frame)

    try:
        for number in numbers:
            before[number] = signal.signal(number, note)
        yield
    finally:
        for number, earlier in before.items():
            if is_last and earlier == signal.SIG_DFL and number in _ASKING:
                signal.signal(number, signal.SIG_IGN)
            # Python returns None for a handler that C code set, and cannot set it again.
            elif earlier is not None:
                signal.signal(number, earlier)
        _ignore_repeats(came)


@contextmanager
def told_on_gevent() -> Iterator[Any]:
    """Yield an Event of gevent that a signal to end sets, for a server on gevent's loop."""
    import gevent
    from gevent.event import Event

    told = Event()
    came: list[int] = []

    def note(number: int) -> None:
        came.append(number)
        told.set()

    watchers = [gevent.signal_handler(number, note, number) for number in ending()]
    try:
        yield told
    finally:
        for watcher in watchers:
            watcher.cancel()
        _ignore_repeats(came)


def _ignore_repeats(came: Collection[int]) -> None:
    """Ignore SIGHUP from now on if it has come and would kill the process next time."""
    if signal.SIGHUP in came and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


class Requests:
    """A counter of the signals that asked a program to end. Signal handlers may call it.

    SIGHUP asks and never forces: a closed terminal sends it twice, and a service manager may send
    it right after SIGTERM. The second SIGTERM or SIGINT forces.
    """

    def __init__(self) -> None:
        # 0: no signal. 1: asked to end. 2: asked to end at once. 3 and more: asked again.
        self.level: int = 0
        self._counted = 0

    def add(self, number: int) -> int:
        """Note a signal. Return the new level, or 0 if the signal changes nothing."""
        before = self.level
        self._counted += number != signal.SIGHUP
        self.level = max(1, self._counted)
        return self.level if self.level > before else 0


def tell_terminal(count: int) -> None:
    """Write on the terminal what the next signal does, after ``count`` signals.

    Signal handlers may call this.
    """
    if os.isatty(2):
        again = "once more forces" if count == 1 else "once more ends at once"
        os.write(2, f"\nstopping; {again}\n".encode())
