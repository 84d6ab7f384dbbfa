"""Calls on threads that an exception ends when they take too long.

Knows threads and when a call is due; knows nothing of messages. Loaded only where there is a limit.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

from gnsqsync.runtime.base import After, Latch

__all__ = ["ThreadLimit"]

# When to try again to strike, in seconds, a thread that starts another one.
_AGAIN_SECONDS = 0.001
# Of a call that has not returned.
_NOTHING = object()


class _Call:
    """One that is under way: on which thread, until when, and whether it was struck."""

    __slots__ = ("due", "struck", "thread")

    def __init__(self, thread: int, due: float) -> None:
        self.thread = thread
        self.due = due
        # Released when the exception was set; made by the timer, before it takes the call.
        self.struck: Latch | None = None


class ThreadLimit:
    """``limit(fn, argument)``: what it returns or raises; after ``seconds`` it is struck, once.

    ``_running`` has the calls that may be struck. Removing one is atomic, and whoever removes it
    decides: its thread, and it is not struck; or the timer, and its thread waits for the exception,
    or takes it back. So nothing is struck after the call. There is no lock, as an exception may
    strike between taking one and the ``try`` that gives it back.
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
        # Also where nothing runs: what begins from now on is not due before that.
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
            # Else it came after the end of fn: it is forgotten, and it comes once.
        except BaseException:  # from somebody else: the next call must not be struck for this one
            self._end(call)
            raise
        if error is None:
            return result
        try:
            raise error
        finally:
            del error

    def _end(self, call: _Call) -> None:
        """From here on the call is not struck. What was set and has not struck is taken back."""
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
        """When to look at it again."""
        if sys.version_info < (3, 12):
            # Until it runs, a new thread has the id of the one that starts it: the exception would
            # strike the new one, and the other would wait for it for ever. Under this lock no
            # thread is made.
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
            return  # it has just ended
        try:
            _set_exception(call.thread, self._interrupt)
        finally:
            call.struck.release()


def _starts_a_thread(thread: int) -> bool:
    """Whether it is starting one that does not run yet."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code is not threading.Thread.start.__code__:
        frame = frame.f_back
    return frame is not None and not frame.f_locals["self"]._started.is_set()


def _set_exception(thread: int, kind: type[BaseException] | None) -> None:
    """Have the thread raise it at its next instruction; None: take back what it has not raised."""
    set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
    what = None if kind is None else ctypes.py_object(kind)
    set_exception(ctypes.c_ulong(thread), what)
