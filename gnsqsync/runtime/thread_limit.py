"""Calls on threads that an exception interrupts when they take too long.

Knows threads and the time at which a call is due. Must not know messages. Loaded only with a limit.

Surprise: ``_running`` decides between a thread that ends its call and a timer that interrupts it.
Removal from the set is atomic, and the one that removes the call decides.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

from gnsqsync.runtime.base import After, Latch

__all__ = ["ThreadLimit"]

# Seconds until the next try to strike a thread that starts another thread now.
_AGAIN_SECONDS = 0.001
# Result of a call that has not returned.
_NOTHING = object()


class _Call:
    """A call under way: its thread, its deadline, and the latch of its strike."""

    __slots__ = ("due", "struck", "thread")

    def __init__(self, thread: int, due: float) -> None:
        self.thread = thread
        self.due = due
        # Made by the timer before it takes the call; released when the exception was set.
        self.struck: Latch | None = None


class ThreadLimit:
    """``limit(fn, argument)`` returns or raises what ``fn`` does. It is struck once after a time.

    ``_running`` has the calls that may be struck. Removal is atomic, and the one that removes a
    call decides. If its thread does, the call is not struck. If the timer does, its thread waits
    for the exception, or takes it back. So nothing is struck after the call. There is no lock,
    because an exception may strike between taking one and the ``try`` that gives it back.
    """

    def __init__(
        self,
        seconds: float,
        interrupt: type[BaseException],
        after: After,
        *,
        now: Callable[[], float],
        new_latch: Callable[[], Latch],
    ) -> None:
        self._seconds = seconds
        self._interrupt = interrupt
        self._after = after
        self._now = now
        self._new_latch = new_latch
        self._running: set[_Call] = set()
        # Planned even if no call runs: a call that begins now is not due earlier.
        after(seconds, self._look)

    def __call__(self, fn: Callable[[Any], Any], argument: Any) -> Any:
        call = _Call(threading.get_ident(), self._now() + self._seconds)
        result: Any = _NOTHING
        error: BaseException | None = None
        try:
            try:
                self._running.add(call)
                result = fn(argument)
            except BaseException as raised:  # noqa: BLE001 - whatever it is, it is raised below
                error = raised
            self._end(call)
        except self._interrupt:
            if error is None and result is _NOTHING:
                raise
            # The strike came after the end of fn, and comes only once: forget it.
        except BaseException:  # from elsewhere: the next call must not be struck for this one
            self._end(call)
            raise
        if error is None:
            return result
        try:
            raise error
        finally:
            del error

    def _end(self, call: _Call) -> None:
        """Keep the call from being struck from here on. Take back an exception that was set."""
        try:
            self._running.remove(call)
        except KeyError:
            assert call.struck is not None
            call.struck.wait()
            _set_exception(call.thread, None)

    # -- by the timer ----------------------------------------------------------------------------

    def _look(self) -> None:
        now = self._now()
        next_at = now + self._seconds
        for call in list(self._running):
            next_at = min(next_at, call.due if call.due > now else self._strike(call, now))
        self._after(next_at - now, self._look)

    def _strike(self, call: _Call, now: float) -> float:
        """Strike a call that is due. Return the time of the next look at it."""
        if sys.version_info < (3, 12):
            # A new thread has the id of its starter until it runs. The exception would strike the
            # new thread, and its starter would wait for it for ever. No thread is made under this
            # lock.
            with threading._active_limbo_lock:  # type: ignore[attr-defined]
                if _starts_a_thread(call.thread):
                    return now + _AGAIN_SECONDS
                self._strike_now(call)
        else:
            self._strike_now(call)
        return now + self._seconds

    def _strike_now(self, call: _Call) -> None:
        call.struck = self._new_latch()
        try:
            self._running.remove(call)
        except KeyError:
            return  # the call has just ended
        try:
            _set_exception(call.thread, self._interrupt)
        finally:
            call.struck.release()


def _starts_a_thread(thread: int) -> bool:
    """Return True if the thread is starting another one, which does not run yet."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not threading.Thread.start.__code__:
        frame = frame.f_back
    return frame is not None and not frame.f_locals["self"]._started.is_set()


def _set_exception(thread: int, kind: type[BaseException] | None) -> None:
    """Make a thread raise at its next instruction; None takes back an exception not raised."""
    set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
    what = None if kind is None else ctypes.py_object(kind)
    set_exception(ctypes.c_ulong(thread), what)
