"""Deliberate bugs, each of which the harness has to find: the test of the tests.

Each one replaces a method of gnsqsync in the client's process and changes nothing on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["MUTATIONS", "apply"]


def answer_to_the_wrong_publish() -> None:
    """nsqd's answer goes to the publish that was sent last, not to the one that waits longest."""
    from gnsqsync.connection.publish_queue import PublishQueue

    original = PublishQueue.__init__

    def swapped(self: PublishQueue, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.pending = _LastFirst()

    PublishQueue.__init__ = swapped  # type: ignore[method-assign]


class _LastFirst(deque[Any]):
    def popleft(self) -> Any:
        return self.pop()


def fin_dropped_at_close() -> None:
    """Answers that wait when a connection is asked to close are not sent any more."""
    from gnsqsync.connection.subscribed import SubscribedConnection

    original = SubscribedConnection.start_closing

    def forgetful(self: SubscribedConnection) -> None:
        self.send_queue.fins.clear()
        original(self)
        self.send_queue.fins = _Hole()  # type: ignore[assignment]

    SubscribedConnection.start_closing = forgetful  # type: ignore[method-assign]


class _Hole(list[bytes]):
    def append(self, item: bytes) -> None:
        pass


def rdy_not_given_back() -> None:
    """What a lost connection had of max_in_flight is not shared out among the others."""
    from gnsqsync.policy.rdy import RdyAllocator
    from tests.support.allocator import rdy_of

    remove, update = RdyAllocator.remove, RdyAllocator.update
    kept: WeakKeyDictionary[RdyAllocator[Any], int] = WeakKeyDictionary()

    def keep(self: RdyAllocator[Any], node: Any) -> bool:
        kept[self] = kept.get(self, 0) + rdy_of(self, node)
        return remove(self, node)

    def share(self: RdyAllocator[Any], now: float, loads: Any) -> Any:
        limit = self.max_in_flight
        self.max_in_flight = max(min(limit, 1), limit - kept.get(self, 0))
        try:
            return update(self, now, loads)
        finally:
            self.max_in_flight = limit

    RdyAllocator.remove = keep  # type: ignore[method-assign]
    RdyAllocator.update = share  # type: ignore[method-assign]


MUTATIONS: dict[str, Callable[[], None]] = {
    "answer-to-the-wrong-publish": answer_to_the_wrong_publish,
    "fin-dropped-at-close": fin_dropped_at_close,
    "rdy-not-given-back": rdy_not_given_back,
}


def apply(name: str | None) -> None:
    """Break gnsqsync in this process; nothing without a name."""
    if name is not None:
        MUTATIONS[name]()
