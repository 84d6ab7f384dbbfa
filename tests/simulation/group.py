"""Readers of a history that a ReaderGroup or a TopicGroup starts and stops together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gnsqsync import Reader, ReaderGroup, TopicGroup
from tests.simulation.plan import ReaderPlan
from tests.simulation.reader import ReaderActor

if TYPE_CHECKING:
    from tests.simulation.history import History

__all__ = ["GroupActor"]


class GroupActor:
    """Each of its Readers has an actor of its own, which watches it as all others.

    Without ``members`` it is a TopicGroup: they come with the topics, by ``plan``.
    """

    def __init__(
        self, history: History, name: str, plan: ReaderPlan, members: list[ReaderActor]
    ) -> None:
        self.name = name
        self.stop_asked = False
        self._history = history
        self._members = members
        self._has_stopped = False
        self._plan = plan
        history.scheduler.after(plan.begins + 0.001, self._begin)

    def _begin(self) -> None:
        group = self._reader_group() if self._members else self._topic_group()
        self._history.user(f"{self.name} main", lambda: self._consume(group))
        self._history.user(f"{self.name} owner", lambda: self._own(group))

    def _reader_group(self) -> ReaderGroup:
        readers = [member.reader for member in self._members]
        return ReaderGroup(
            [reader for reader in readers if reader is not None],
            runtime=self._history.runtime(self.name),
        )

    def _topic_group(self) -> TopicGroup:
        return TopicGroup(
            "^(orders|mails)$",
            self._make_reader,
            lookupd_http_addresses=self._history.urls(),
            lookupd_poll_interval=self._plan.keywords["lookupd_poll_interval"],
            runtime=self._history.runtime(self.name),
        )

    def _make_reader(self, topic: str) -> Reader:
        history = self._history
        member = ReaderActor(history, len(history.readers), replace(self._plan, topic=topic))
        history.readers.append(member)
        self._members.append(member)
        member.begin()
        assert member.reader is not None
        return member.reader

    def _consume(self, group: ReaderGroup | TopicGroup) -> None:
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
        if results is None or not any(result.workers_running for result in results):
            for member in self._members:
                member.group_has_stopped()
            history.look_for_leftovers(self.name)

    def _own(self, group: ReaderGroup | TopicGroup) -> None:
        """As of a Reader."""
        history, stops_at = self._history, self._plan.stops_at
        while not self.stop_asked and not (
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
