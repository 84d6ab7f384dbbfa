"""Latch for greenlets with cheap waits that may end a few milliseconds late.

Knows gevent's loop and hub. Must not know a socket or a task.

A wait notes its end in the ``Clock``, which looks at all waits each 5 ms and stops when there are
none.

Surprise: no wait has a timer. That is why it is cheap, and why it may end late.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gevent

from gnsqsync.runtime.base import Runtime

__all__ = ["Clock", "RoughLatch"]

_now = Runtime.now
# Seconds between two looks of the clock, and so the lateness of a RoughLatch.
_TICK_SECONDS = 0.005


class Clock:
    """Timer for all waits on a RoughLatch. It runs while there is a wait."""

    __slots__ = ("_timer", "get_ident", "home", "loop", "waiting")

    def __init__(self, home: int, get_ident: Callable[[], int]) -> None:
        self.home: int = home
        self.get_ident: Callable[[], int] = get_ident
        # Waiting latches, with the times at which their waits end.
        self.waiting: dict[RoughLatch, float] = {}
        # Loop of the timer, and the timer, while it runs.
        self.loop: Any = None
        self._timer: Any = None

    def run(self, loop: Any) -> None:
        # A new loop means that gevent.get_hub().destroy() has ended the old one with its timers.
        self.loop = loop
        self._timer = loop.timer(_TICK_SECONDS, _TICK_SECONDS)
        self._timer.start(self._tick)

    def _tick(self) -> None:
        if not self.waiting:
            self._timer.stop()
            self._timer.close()
            self.loop = None
            return
        now = _now()
        for latch, until in list(self.waiting.items()):
            if until <= now:
                latch.expire()


class RoughLatch:
    """A bare switch to the hub and back. It costs less than half of an Event with a timeout."""

    __slots__ = ("_callback", "_clock", "_expired", "_waiter", "released")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiter: Any = None
        self._callback: Any = None
        # True once the time of the wait is over.
        self._expired = False
        # True once ``release`` was called, for good.
        self.released: bool = False

    def release(self) -> None:
        self.released = True
        self._wake()

    def expire(self) -> None:
        self._expired = True
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is None or self._callback is not None:
            return
        clock = self._clock
        if clock.get_ident() == clock.home:
            self._callback = clock.loop.run_callback(waiter.switch)
        else:
            self._callback = clock.loop.run_callback_threadsafe(waiter.switch)

    def wait(self, timeout: float | None = None) -> bool:
        if self.released or (timeout is not None and timeout <= 0):
            return self.released
        clock = self._clock
        hub = gevent.get_hub()
        self._expired = False
        clock.waiting[self] = math.inf if timeout is None else _now() + timeout
        if clock.loop is not hub.loop:
            clock.run(hub.loop)
        # Set after the timer runs, so that a release finds the loop.
        self._waiter = gevent.getcurrent()
        try:
            while not (self.released or self._expired):
                hub.switch()
        finally:
            self._waiter = None
            clock.waiting.pop(self, None)
            callback, self._callback = self._callback, None
            if callback is not None:
                # If an exception was thrown in, the callback must not switch here a second time.
                callback.stop()
        return self.released
