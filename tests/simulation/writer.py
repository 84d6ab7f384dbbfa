"""A Writer of a history, and the threads that publish with it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from gnsqsync import Writer
from gnsqsync.errors import ClosedError, NotSent, NSQError, OutcomeUnknown, PublishError, Refused
from gnsqsync.policy.ownership import GRACE_SECONDS
from tests.simulation.journal import Publish
from tests.simulation.plan import WriterPlan
from tests.simulation.scheduler import SimTask
from tests.simulation.troubles import Struck

if TYPE_CHECKING:
    from tests.simulation.history import History

__all__ = ["WriterActor"]

# Over the library's own times: what a slow turn of the scheduler may add (seconds).
_LEEWAY = 0.25


class WriterActor:
    """A Writer and the threads that publish with it."""

    def __init__(self, history: History, index: int, plan: WriterPlan) -> None:
        self.name = f"writer {index}"
        self.is_over = False
        self.close_asked = False
        self._history = history
        self._index = index
        self._plan = plan
        self._rng = random.Random(f"{self.name} {history.plan.chance}")
        self._number = 0
        self._closed_at: float | None = None
        self._tasks: list[SimTask] = []
        self._writer: Writer
        history.scheduler.after(plan.begins, self._begin)
        self._has_begun = False

    @property
    def has_closed(self) -> bool:
        return self._closed_at is not None

    @property
    def publish_timeout(self) -> float:
        timeout: float = self._plan.keywords["publish_timeout"]
        return timeout

    def record_in_child(self, number: int) -> Publish:
        """Of a publish in the child of a fork."""
        return self._record(900 + number, "publish")

    @property
    def topic(self) -> str:
        return self._plan.topic

    @property
    def writer(self) -> Writer | None:
        return self._writer if self._has_begun else None

    @property
    def alive(self) -> bool:
        return self._has_begun and not all(task.ended for task in self._tasks[1:])

    def _begin(self) -> None:
        history, plan = self._history, self._plan
        self._has_begun = True
        self._writer = Writer(
            () if plan.uses_lookupd else history.addresses(),
            lookupd_http_addresses=history.urls() if plan.uses_lookupd else (),
            runtime=history.runtime(self.name),
            **plan.keywords,
        )
        self._tasks.append(history.user(f"{self.name} owner", self._own))
        for thread in range(plan.threads):
            name = f"{self.name} thread {thread}"
            self._tasks.append(history.user(name, lambda thread=thread: self._publish_on(thread)))

    def _own(self) -> None:
        history = self._history
        closes_at = self._plan.closes_at
        while not self.close_asked and not (
            closes_at is not None and history.scheduler.now - 1000.0 >= closes_at
        ):
            history.sleep(0.5)
        self._closed_at = began = history.scheduler.now
        stood = history.troubles.stood_still
        self._writer.close()
        took = history.scheduler.now - began - (history.troubles.stood_still - stood)
        limit = self._plan.keywords["publish_timeout"] + 5.0 + _LEEWAY
        if history.troubles.has_struck:
            # Who was struck may have a lock still, which is waited for as long.
            limit += GRACE_SECONDS
        if not self.alive:
            history.look_for_leftovers(self.name)
        if took > limit:
            history.journal.violated(f"close() of {self.name} took {took:.2f} s of {limit:g}")

    def _publish_on(self, thread: int) -> None:
        history, plan, rng = self._history, self._plan, self._rng
        futures: list[tuple[Future[None], Publish]] = []
        for _ in range(plan.messages):
            if self.is_over or self.close_asked:
                break
            kind = rng.choice(plan.kinds)
            if not self._publish(thread, kind, futures):
                break
            self._pause()
        while any(not future.done() for future, _ in futures):
            history.sleep(0.05)

    def _pause(self) -> None:
        """Until it is time for the next publish; with bursts all threads begin together."""
        history, plan = self._history, self._plan
        if plan.bursts:
            until = (history.scheduler.now // plan.bursts + 1) * plan.bursts
        else:
            until = history.scheduler.now + self._rng.expovariate(1.0 / plan.pause)
        while (left := until - history.scheduler.now) > 0 and not self.is_over:
            history.sleep(min(left, 20.0))

    def _record(self, thread: int, kind: str) -> Publish:
        self._number += 1
        history, plan = self._history, self._plan
        body = b"w%d-%d-%d." % (self._index, thread, self._number)
        head = body
        body += b"x" * max(0, plan.size - len(body))
        published = Publish(
            body, plan.topic, kind, history.scheduler.now, plan.keywords["publish_timeout"]
        )
        published.stood_still = history.troubles.stood_still
        published.may_repeat = plan.keywords["retry_unknown"] and kind != "async"
        history.journal.publishes[body] = published
        history.journal.by_head[head] = body
        return published

    def _publish(self, thread: int, kind: str, futures: list[tuple[Future[None], Publish]]) -> bool:
        """Whether the Writer is open still."""
        history, plan, writer = self._history, self._plan, self._writer
        count = self._rng.choice((2, 5, 20)) if kind == "many" else 1
        records = [self._record(thread, kind) for _ in range(count)]
        bodies = [record.body for record in records]
        stood = history.troubles.stood_still
        began = history.scheduler.now
        acknowledged = 0
        error: BaseException | None = None
        try:
            with history.call():
                if kind == "publish":
                    writer.publish(plan.topic, bodies[0])
                elif kind == "defer":
                    writer.publish(plan.topic, bodies[0], defer=self._rng.choice((0.01, 1.0)))
                elif kind == "many":
                    writer.publish_many(plan.topic, bodies)
                else:
                    future = writer.publish_async(plan.topic, bodies[0])
                    futures.append((future, records[0]))
                    future.add_done_callback(
                        lambda future: self._ended(records[0], future.exception())
                    )
        except Struck:
            for record in records:
                record.outcome = record.outcome or "struck"
            return True
        except NSQError as raised:
            error = raised
            acknowledged = getattr(raised, "acknowledged", 0) or 0
        took = history.scheduler.now - began - (history.troubles.stood_still - stood)
        limit = plan.keywords["publish_timeout"] + _LEEWAY
        if took > limit:
            history.journal.violated(
                f"{kind} of {bodies[0][:16]!r} took {took:.3f} s of {limit:g}: {error!r}"
            )
        if error is not None and not self._may_fail(error):
            history.journal.violated(
                f"{kind} of {bodies[0][:16]!r} failed in a calm world: {error!r}"
            )
        if kind == "async" and error is None:
            return True
        # Bodies of one command are sent together, so they are judged at one moment.
        in_hand = isinstance(error, OutcomeUnknown) and self._is_in_hand(bodies)
        for index, record in enumerate(records):
            self._ended(record, error if index >= acknowledged else None, in_hand)
        return not isinstance(error, ClosedError)

    def _may_fail(self, error: NSQError) -> bool:
        """Not where nothing goes wrong and there is time."""
        history = self._history
        is_quick = self._plan.keywords["publish_timeout"] >= 5.0 and history.plan.is_race
        return isinstance(error, ClosedError) or not (history.is_calm and is_quick)

    def _is_in_hand(self, bodies: Sequence[bytes]) -> bool:
        """Return True if a thread has taken one out of the queue, and is about to send it."""
        queues = [
            c.send_queue
            for p in self._writer._by_process.values()
            for c in p.pool.table.connections()
        ]
        return any(
            queue._lock.locked()
            and any(body in slot.data for slot in list(queue.pending) for body in bodies)
            for queue in queues
        )

    def _ended(
        self, record: Publish, error: BaseException | None, in_hand: bool | None = None
    ) -> None:
        journal = self._history.journal
        record.ended = self._history.scheduler.now
        copies = journal.stored.get(record.body, [])
        shown = record.body[:16]
        if error is None:
            record.outcome = "ok"
            if not copies:
                journal.violated(f"{shown!r} was acknowledged, and no nsqd has stored it")
        elif isinstance(error, (NotSent, ClosedError)):
            record.outcome = "not sent"
            if copies and not record.may_repeat:
                journal.violated(f"{shown!r} is {error!r}, and {copies[0].nsqd} has stored it")
        elif isinstance(error, OutcomeUnknown):
            record.outcome = "unknown"
            sent = journal.sent.get(record.body)
            # Who stood still is taken for killed, and then nobody knows.
            stood_still = self._history.troubles.stood_still != record.stood_still
            if in_hand is None:
                in_hand = self._is_in_hand([record.body])
            if sent is None and not stood_still and not in_hand:
                journal.violated(f"{shown!r} is in doubt, and was not sent: {error!r}")
            elif sent is not None and sent < 0:
                journal.violated(f"{shown!r} is in doubt, sent after nsqd's EOF: {error!r}")
        elif isinstance(error, Refused):
            record.outcome = "refused"
        elif isinstance(error, PublishError):
            record.outcome = "failed"
        else:
            journal.violated(f"{shown!r} raised {error!r}")
        journal.note(f"{self.name}: {record.kind} {shown.decode()} {record.outcome} {error or ''}")
