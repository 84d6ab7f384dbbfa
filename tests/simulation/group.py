"""Readers of a history that a ReaderGroup starts and stops together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsqsync import ReaderGroup

if TYPE_CHECKING:
    from tests.simulation.history import History
    from tests.simulation.reader import ReaderActor

__all__ = ["GroupActor"]


class GroupActor:
    """Its Readers are made by their own actors, which watch them as all others."""

    def __init__(self, history: History, number: int, members: list[ReaderActor]) -> None:
        self.name = f"group {number}"
        self._history = history
        self._members = members
        self._has_stopped = False
        self._plan = members[0].plan
        history.scheduler.after(self._plan.begins + 0.001, self._begin)

    def _begin(self) -> None:
        readers = [member.reader for member in self._members]
        group = ReaderGroup(
            [reader for reader in readers if reader is not None],
            runtime=self._history.runtime(self.name),
        )
        self._history.user(f"{self.name} main", lambda: self._consume(group))
        self._history.user(f"{self.name} owner", lambda: self._own(group))

    def _consume(self, group: ReaderGroup) -> None:
        history = self._history
        try:
            results = group.start()
        except RuntimeError as error:
            if "start new thread" not in str(error):
                raise
            results = None
            for member in self._members:
                member.group_stops()
        self._has_stopped = True
        for index, member in enumerate(self._members):
            if results is None or not results[index].workers_running:
                member.group_has_stopped()
        if results is not None and not any(result.workers_running for result in results):
            history.look_for_leftovers(self.name)

    def _own(self, group: ReaderGroup) -> None:
        """As of a Reader."""
        history, stops_at = self._history, self._plan.stops_at
        while not self._members[0].stop_asked and not (
            stops_at is not None and history.scheduler.now - 1000.0 >= stops_at
        ):
            left = 0.3 if stops_at is None else stops_at - (history.scheduler.now - 1000.0)
            history.sleep(min(0.3, left))
        for member in self._members:
            member.group_stops()
        began, stood = history.scheduler.now, history.troubles.stood_still
        timeout = self._plan.stop_timeout
        group.stop(timeout)
        while not self._has_stopped:
            took = history.scheduler.now - began - (history.troubles.stood_still - stood)
            if took > timeout + 12.0:
                history.journal.violated(f"stop({timeout:g}) of {self.name} takes {took:.1f} s")
                history.tell_tasks()
                return
            history.sleep(0.2)
