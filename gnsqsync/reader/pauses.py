"""Backoff of a running Reader: verdicts on messages come in, RDY and log lines go out.

Knows the backoff, and who must learn of its decisions. Decides nothing itself.

A verdict goes to the backoff under the lock, and RDY is planned anew. After the lock, RDY is sent,
and then messages go back and a line is logged.

Surprise: most successes never come here. Without a pause or a growth, workers only add them to
``evidence``, without a lock.
"""

from __future__ import annotations

from collections.abc import Callable

from gnsqsync.connection.subscribed import SubscribedConnection
from gnsqsync.message import Message
from gnsqsync.policy.backoff import Backoff, Phase, Step
from gnsqsync.policy.evidence import IN_A_ROW, Evidence
from gnsqsync.reader.chunks import Chunks
from gnsqsync.reader.events import Events
from gnsqsync.reader.rdy_control import RdyControl
from gnsqsync.reader.tries import Tries
from gnsqsync.runtime import Lock, Runtime

__all__ = ["Pauses"]


class Pauses:
    """Passes verdicts on messages to the backoff, and its decisions to all concerned.

    ``lock`` belongs to the Subscription, and guards the backoff and the RdyControl. Code under it
    only decides; the consequences follow after it. RDY is sent first, so that a message that goes
    back is not delivered again at once.
    """

    def __init__(
        self,
        rdy: RdyControl,
        lock: Lock,
        runtime: Runtime,
        chunks: Chunks,
        tries: Tries,
        events: Events,
        apply: Callable[[list[SubscribedConnection]], None],
    ) -> None:
        """``apply``: sends the changed RDY of connections, outside the lock."""
        # Read without the lock by other modules.
        self.backoff: Backoff = rdy.backoff
        # Workers add their successes to this.
        self.evidence: Evidence = rdy.backoff.evidence
        self._rdy = rdy
        self._lock = lock
        self._now = runtime.now
        self._chunks = chunks
        self._tries = tries
        self._events = events
        self._apply = apply

    # -- verdicts ----------------------------------------------------------------------------------

    def succeeded(self, count: int) -> None:
        """Count handled messages, and judge them unless the backoff is off."""
        self.evidence.successes += count
        if self.backoff.level:
            self.judged(count)

    def judged(self, successes: int) -> None:
        """Judge a test or a growth; 0 successes mean no verdict.

        The caller has counted the successes, and calls only while ``backoff.level`` is above 0.
        """
        backoff = self.backoff
        if successes:
            self._judge(lambda now: backoff.succeeded(successes, now))
        else:
            self._judge(backoff.no_verdict)

    def failed(
        self, connection: SubscribedConnection, message: Message, counts: bool = True
    ) -> None:
        """Judge a failed message. ``counts``: False if the user excuses the failure."""
        key = connection.nsqd_address, message._id
        self._failed(key, self._tries.of(message), counts)

    def answer_failed(self, connection: SubscribedConnection, message_id: str) -> None:
        """Judge a FIN that nsqd refused, which counts as a failure by the user's option."""
        self._failed((connection.nsqd_address, message_id.encode()), 1, True)

    def _failed(self, key: tuple[str, bytes], tries: int, counts: bool) -> None:
        backoff, evidence = self.backoff, self.evidence
        before = after = 0

        def judge(now: float) -> bool:
            nonlocal before, after
            before = evidence.in_a_row
            changed = backoff.failed(key, tries, now, counts)
            after = evidence.in_a_row
            return changed

        self._judge(judge)
        if before < after == IN_A_ROW:
            self._events.fails_in_a_row(after, pauses=bool(backoff.level))

    # -- decisions ---------------------------------------------------------------------------------

    def tick(self, now: float) -> Step | None:
        """End a pause or a growth that is over; holding the lock. The caller plans RDY."""
        before = self.backoff.phase
        return self._step(before, now) if self.backoff.tick(now) else None

    def set_whole(self, count: int, *, one_message: bool) -> None:
        """Set the limit of messages in flight, by the user's wish or a group's loan."""

        def judge(now: float) -> bool:
            self._rdy.lend(count, now, one_message=one_message)
            self.backoff.set_whole(count, now)
            return True

        self._judge(judge)

    def tell(self, step: Step | None) -> None:
        """Give back queued messages if a pause began, and log; outside the lock."""
        if step is None:
            return
        self._events.strategy(self.backoff.error)
        if step.phase is Phase.BLOCKED:
            if self.backoff.gives_back:
                self._chunks.give_back()
            self._events.pauses(step, self.backoff.rule)
        elif step.phase is Phase.TESTING:
            self._events.testing()
        elif step.phase is Phase.GROWING:
            self._events.grows()
        else:
            self._events.is_out_of_backoff()

    def left(self) -> float:
        """Return the seconds until the pause ends; 0 without a pause. Takes no lock."""
        resume_at = self.backoff.resume_at
        return 0.0 if resume_at is None else max(0.0, resume_at - self._now())

    def _judge(self, judge: Callable[[float], bool]) -> None:
        """Call ``judge`` with the time, under the lock. If it returns True, plan RDY anew."""
        with self._lock:
            now, before = self._now(), self.backoff.phase
            if not judge(now):
                return
            step = self._step(before, now)
            changed = self._rdy.plan(now)
        self._apply(changed)
        self.tell(step)

    def _step(self, before: Phase, now: float) -> Step | None:
        """Return the change of the phase, and hold messages back or not; holding the lock."""
        if self.backoff.phase is before:
            return None
        self._rdy.hand_over()
        return self.backoff.step(now)
