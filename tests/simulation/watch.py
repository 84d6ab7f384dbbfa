"""What is watched at nsqds and on the wire, whoever publishes or consumes."""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gnsqsync.embedded.channel import Channel
from gnsqsync.embedded.queueing import QueuedMessage
from gnsqsync.embedded.topic import Topic
from gnsqsync.policy.backoff import Backoff
from tests.simulation.journal import Journal, Stored
from tests.simulation.network import End
from tests.simulation.nsqd import SimNsqd
from tests.simulation.picture import Sample
from tests.simulation.scheduler import SimTask

if TYPE_CHECKING:
    from tests.simulation.history import History

__all__ = ["Watch"]

_MOST_SAMPLES = 20_000
_BODY = re.compile(rb"w\d+-\d+-\d+\.")


class Watch:
    """Looks at each message that an nsqd stores, sends and sees finished, and at each send."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._journal = history.journal
        # For a picture.
        self.samples: list[Sample] = []
        history.network.on_sent = self._on_sent
        history.scheduler.on_raised = self._on_raised
        self._watch_brokers()
        self._check_turns()

    def _check_turns(self) -> None:
        for reader in self._history.readers:
            reader.check_turns()
            reader.check_pause()
        self._history.scheduler.after(1.0, self._check_turns)

    def _watch_brokers(self) -> None:
        journal, scheduler = self._journal, self._history.scheduler
        publish, put, finish = Topic.publish, Channel.put, Channel.finish

        def watched_publish(topic: Topic, bodies: Sequence[bytes], delay: float = 0.0) -> None:
            before = topic.message_count
            try:
                publish(topic, bodies, delay)
            finally:
                nsqd = topic._schedule.nsqd  # type: ignore[attr-defined]
                for body in bodies[: topic.message_count - before]:
                    self._on_stored(nsqd, topic.name, body)

        def watched_put(channel: Channel, message: QueuedMessage) -> None:
            put(channel, message)
            nsqd = channel._schedule.nsqd  # type: ignore[attr-defined]
            key = (nsqd.name, channel.topic_name, channel.name, bytes(message.body))
            journal.owed.setdefault(key, scheduler.now)

        def watched_finish(channel: Channel, id: bytes, consumer: Any) -> bytes | None:
            message = channel.in_flight.get(id)
            failed = finish(channel, id, consumer)
            fin = (channel, id, consumer)
            if failed is not None and fin in journal.finished:
                journal.violated(f"a second FIN of {id!r} on {channel.name}")
            if failed is None and message is not None and message.attempts == 1:
                # Of one that has timed out, another copy may be on its way to the same consumer.
                journal.finished.add(fin)
            if failed is None and message is not None:
                nsqd = channel._schedule.nsqd  # type: ignore[attr-defined]
                journal.owed.pop(
                    (nsqd.name, channel.topic_name, channel.name, bytes(message.body)), None
                )
                key = (channel.name, message.body)
                if not journal.handled.get(key) and not journal.gave_up.get(key):
                    journal.violated(f"FIN of {message.body[:20]!r} on {channel.name}, unhandled")
            return failed

        signal = Backoff._signal

        def watched_signal(backoff: Backoff, *what: Any) -> bool:
            phase, resume_at = backoff.phase, backoff.resume_at
            changed_at = getattr(backoff, "changed_at", -math.inf)
            # A thread may be interrupted in the middle of it.
            backoff.changed_at = math.inf  # type: ignore[attr-defined]
            changed = signal(backoff, *what)
            backoff.changed_at = changed_at  # type: ignore[attr-defined]
            if backoff.phase is not phase:
                backoff.resumes = getattr(backoff, "resumes", 0) + (resume_at is not None)  # type: ignore[attr-defined]
                backoff.changed_at = scheduler.now  # type: ignore[attr-defined]
                late = 0.0 if resume_at is None else scheduler.now - resume_at
                stood = self._history.troubles
                stops = any(reader.stops(backoff) for reader in self._history.readers)
                if late > 0.5 and not (stops or stood.stood_still_lately or stood.stood_still):
                    journal.violated(f"a pause of the backoff ends {late:.2f} s late")
            return changed

        Backoff._signal = watched_signal  # type: ignore[method-assign]
        Topic.publish = watched_publish  # type: ignore[method-assign]
        Channel.put = watched_put  # type: ignore[method-assign]
        Channel.finish = watched_finish  # type: ignore[method-assign]

    def _on_stored(self, nsqd: SimNsqd, topic: str, body: bytes) -> None:
        body = bytes(body)
        self._journal.stored.setdefault(body, []).append(
            Stored(nsqd.name, topic, self._history.scheduler.now)
        )
        published = self._journal.publishes.get(body)
        if published is None:
            self._journal.violated(f"{nsqd.name} stored {body[:20]!r}, which nobody published")
        elif published.outcome == "not sent":
            self._journal.violated(f"{nsqd.name} stored {body[:20]!r}, which was NotSent")
        elif len(self._journal.stored[body]) > 1 and not published.may_repeat:
            self._journal.violated(f"{body[:20]!r} is stored twice, at {nsqd.name} last")

    def _on_sent(self, end: End, data: bytes, offered: bytes) -> None:
        if end.host != "client":
            return
        now = self._history.scheduler.now
        for body in _BODY.findall(offered):
            published = self._journal.publishes.get(_whole(self._journal, body))
            if published is not None:
                self._journal.sent[published.body] = now
                if end.has_eof and now - end.ended_at > 0.01:
                    # nsqd had ended the connection, and the kernel knew.
                    self._journal.sent[published.body] = -now
        if b"\nFIN " in data or data[:4] in (b"FIN ", b"RDY ", b"REQ ", b"TOUC", b"CLS\n"):
            self._journal.note(f"{end.address} to {end.peer.address}: {data[:120]!r}")
        # What is looked at has points, too.
        scheduler = self._history.scheduler
        preempts, scheduler.preempts = scheduler.preempts, False
        for reader in self._history.readers:
            reader.on_sent(end, data)
            if len(self.samples) < _MOST_SAMPLES:
                self.samples += reader.samples(end)
        scheduler.preempts = preempts

    def _on_raised(self, task: SimTask) -> None:
        error = task.raised
        assert error is not None
        text = "".join(traceback.format_exception(error))
        self._journal.violated(f"{task.name} ended by {error!r}\n{text}")

    def settle_accounts(self) -> None:
        journal = self._journal
        for published in journal.publishes.values():
            if not published.outcome:
                journal.violated(f"the publish of {published.body[:20]!r} never ended")
        if journal.violations:
            return
        waiting = {
            (nsqd.name, topic.name, channel.name): _waiting(channel)
            for nsqd in self._history.nsqds
            for topic in nsqd.broker.topics.values()
            for channel in topic.channels.values()
        }
        for (nsqd, topic, channel, body), since in journal.owed.items():
            if any(name == nsqd and when >= since for name, when, _ in journal.losses):
                continue
            found = waiting.get((nsqd, topic, channel))
            if found is None or (body not in found and None not in found):
                journal.violated(
                    f"{body[:20]!r} is neither handled nor waits on {channel} of {nsqd}"
                )


def _whole(journal: Journal, head: bytes) -> bytes:
    """Bodies begin with a number, and are padded: the one that begins so."""
    return journal.by_head.get(head, b"")


def _waiting(channel: Channel) -> set[bytes | None]:
    """The bodies in its memory, and of what is under way from there; None: others are on disk."""
    found: set[bytes | None] = {message.body for message in channel.queue}
    found.update(message.body for message in channel.in_flight.values())
    found.update(message.body for _, _, message in channel.deferred)
    if channel.backlog is not None and channel.backlog.depth:
        found.add(None)
    return found
