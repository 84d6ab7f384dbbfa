"""Publish on its way to one nsqd: its bytes, and the outcome that its publisher waits for.

Knows latches and futures. Must not know a socket, a queue, or who reads the answer.

The publisher makes a slot, the queue sends its bytes, and the thread that reads sets its outcome.

Surprise: many slots have no latch, because their publishers read the answer themselves. A publisher
that has to wait sets the latch first, and then looks for the outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future

from gnsqsync.errors import PublishError
from gnsqsync.runtime import Latch

__all__ = ["PublishSlot", "end_each"]


class PublishSlot:
    """A PUB, DPUB or MPUB on its way: its bytes and its outcome.

    The outcome is set once: first ``error``, then ``done``; then ``latch`` is released. So a
    publisher that sets ``latch`` and finds no outcome may wait for it. A publisher that reads its
    answer itself needs no latch. ``succeed`` and ``fail`` may run a future's callbacks, which are
    the user's: only the reading thread calls them, and the publisher that takes its slot back.
    """

    __slots__ = ("abandoned", "data", "done", "error", "future", "latch", "messages", "on_end")

    def __init__(
        self,
        data: bytes,
        latch: Latch | None = None,
        future: Future[None] | None = None,
        messages: int = 1,
        on_end: Callable[[PublishSlot], None] | None = None,
    ) -> None:
        self.data: bytes = data
        self.messages: int = messages
        self.error: PublishError | None = None
        # True once the publisher gave up waiting. The slot keeps its place in the queue of answers.
        self.abandoned: bool = False
        self.done: bool = False
        self.latch: Latch | None = latch
        self.future: Future[None] | None = future
        # Called with the slot before its future ends; must be short.
        self.on_end: Callable[[PublishSlot], None] | None = on_end

    def succeed(self) -> None:
        self._end()
        if self.future is not None and self.future.set_running_or_notify_cancel():
            self.future.set_result(None)

    def fail(self, error: PublishError) -> None:
        self.error = error
        self._end()
        if self.future is not None and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def _end(self) -> None:
        self.done = True
        if self.latch is not None:
            self.latch.release()
        if self.on_end is not None:
            self.on_end(self)

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds. Return True if there is an outcome. Needs ``latch``."""
        if not self.done and self.latch is not None:
            self.latch.wait(max(0.0, timeout))
        return self.done


def end_each(ends: Iterable[Callable[[], None]]) -> None:
    """Call each of ``ends`` (``succeed`` or ``fail`` of a slot), whatever a callback raises.

    Futures swallow each Exception of a callback, and let SystemExit or gevent.Timeout through.
    The last error let through is raised after all calls.
    """
    raised: BaseException | None = None
    for end in ends:
        try:
            end()
        except BaseException as error:  # noqa: BLE001 - a user's callback; raised below
            raised = error
    if raised is not None:
        raise raised
