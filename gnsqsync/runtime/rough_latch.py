"""A latch for greenlets that is cheap to wait for and a few milliseconds late.

Knows gevent's loop and hub, and no socket and no task.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gevent

from gnsqsync.runtime.base import Runtime

__all__ = ["Clock", "RoughLatch"]

_now = Runtime.now
# How late a RoughLatch may be, and how often its clock looks.
_TICK_SECONDS = 0.005


class Clock:
    """One timer for all that wait with a RoughLatch; it runs while one does."""

    __slots__ = ("_timer", "get_ident", "home", "loop", "waiting")

    def __init__(self, home: int, get_ident: Callable[[], int]) -> None:
        self.home: int = home
        self.get_ident: Callable[[], int] = get_ident
        self.waiting: dict[RoughLatch, float] = {}
        # Of the timer, while it runs.
        self.loop: Any = None
        self._timer: Any = None

    def run(self, loop: Any) -> None:
        # Another loop: gevent.get_hub().destroy() has ended the one before, and its timers.
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
    """A bare switch to the hub and back: less than half the price of an Event with a timeout."""

    __slots__ = ("_callback", "_clock", "_expired", "_waiter", "released")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiter: Any = None
        self._callback: Any = None
        self._expired = False
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
        # After that: a release finds the loop.
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
