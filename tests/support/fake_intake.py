"""Channels in memory, and the ``Intake`` of a read task on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from gnsqsync.spark.read_plan import PartitionPlan, ReadSettings
from gnsqsync.spark.returns import Look

__all__ = ["Channel", "Died", "FakeIntake"]

SEGMENT = 3


class Died(BaseException):
    """The simulated process of this code has died."""


class Channel:
    """The channel of one nsqd."""

    def __init__(self) -> None:
        self.queue: list[Any] = []
        self.held: list[Any] = []
        self.returned = 0

    def take(self, count: int) -> list[Any]:
        taken, self.queue = self.queue[:count], self.queue[count:]
        for message in taken:
            message.attempts += 1
        self.held += taken
        return taken

    def finish(self, messages: Sequence[Any]) -> None:
        self.held = [message for message in self.held if message not in messages]

    def give_back(self, messages: Sequence[Any]) -> None:
        self.finish(messages)
        self.queue += messages
        self.returned += len(messages)

    def look(self) -> Look:
        return Look(1, self.returned, len(self.held), len(self.queue) + len(self.held))


class FakeIntake:
    """An ``Intake`` on a Channel."""

    channels: ClassVar[dict[str, Channel]] = {}
    # Called after an entry is made and before its messages are finished.
    before_finish: ClassVar[Callable[[], None]] = staticmethod(lambda: None)

    def __init__(self, plan: PartitionPlan, settings: ReadSettings, room: int, seen: Any) -> None:
        self.hand: list[Any] = []
        self.problem, self.deduplicated, self.too_old = "", 0, False
        self.room, self._seen = room, seen
        self._channel = self.channels[plan.nsqd]

    def __enter__(self) -> FakeIntake:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is not Died:
            self.give_back()

    def collect(self, *, whole: bool) -> bool:
        while len(self.hand) < min(SEGMENT, self.room):
            taken = self._channel.take(min(SEGMENT, self.room) - len(self.hand))
            if not taken:
                return False
            again = [message.id for message in taken if message.attempts > 1]
            known = self._seen.among(again) if again else set()
            self._channel.finish([message for message in taken if message.id in known])
            self.hand += [message for message in taken if message.id not in known]
        return True

    def rows(self) -> tuple[list[Any], list[int]]:
        return self.hand, [0] * len(self.hand)

    def finish_hand(self) -> None:
        type(self).before_finish()
        self.finish_those({message.id for message in self.hand})

    def finish_those(self, ids: set[str]) -> None:
        self._channel.finish([message for message in self.hand if message.id in ids])
        self.hand = [message for message in self.hand if message.id not in ids]

    def give_back(self, above: int = 0) -> None:
        self._channel.give_back(self.hand[above:])
        self.hand = self.hand[:above]

    def drop_orphans(self) -> None:
        pass
