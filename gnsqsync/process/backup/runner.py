"""Readers that write their messages to files, and finish each message after its sync.

The worker of a Reader writes a message at once, and detaches it. The worker syncs the files of its
topic when nsqd waits for answers. The thread of the rounds syncs the files every sync interval, and
before nsqd would time the messages out. After a sync the messages are finished.

Handlers are used instead of ``Reader.batches()`` for two reasons. A batch is written when it is
full or its time is over, so its messages could go to the file of the next hour. And a TopicGroup
starts its Readers itself.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import FrameType

from gnsqsync.errors import NSQError
from gnsqsync.message import Message
from gnsqsync.process.backup.files import TopicFiles
from gnsqsync.process.backup.topic import TopicBackUp
from gnsqsync.process.signals import handled
from gnsqsync.process.supervisor import Ending, StopSignals
from gnsqsync.reader import Reader
from gnsqsync.reader.group import Group
from gnsqsync.runtime import Mutex, choose
from gnsqsync.stats import StopResult

__all__ = ["BackUp", "Progress"]

# Seconds between two rounds.
_ROUND_SECONDS = 0.5
# Upper bound of the seconds in which a stop writes received messages.
_DRAIN_SECONDS = 5.0
# Seconds of one wait for the end. Python handles a signal that comes just before a wait after it.
_WAKE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts since the start. ``held``: messages written and not synced. ``size``: bytes."""

    topics: int
    finished: int
    held: int
    size: int


class BackUp:
    """A backup by a group of Readers, until a signal comes or no topic can be written.

    A topic that cannot be written gets no messages for a while, and is tried again. The others go
    on. ``make_files`` returns the files of a topic. ``make_reader`` returns a Reader with one
    worker for a topic and its handler. ``sync_interval``: seconds.
    """

    def __init__(
        self,
        make_files: Callable[[str], TopicFiles],
        make_reader: Callable[[str, Callable[[Message], None]], Reader],
        *,
        max_in_flight: int,
        sync_interval: float,
        on_round: Callable[[Progress], object],
    ) -> None:
        # Running Readers. The list object never changes, because the metrics page holds it.
        self.readers: list[Reader] = []
        self._make_files = make_files
        self._make_reader = make_reader
        self._max_in_flight = max_in_flight
        self._sync_interval = sync_interval
        self._on_round = on_round
        runtime = choose(None)
        self._runtime = runtime
        # Set by a signal, an error, or the end of all Readers. It ends the wait of a round.
        self._wake = runtime.event()
        # Set after the end of all Readers.
        self._over = runtime.event()
        # Guards ``_topics``, ``readers``, ``_finished`` and ``_size``.
        self._lock: Mutex = runtime.lock()
        # Topics by name.
        self._topics: dict[str, TopicBackUp] = {}
        # Number of finished messages of topics that are gone.
        self._finished = 0
        # Bytes of topics that are gone.
        self._size = 0
        self._group: Group | None = None
        # Seconds that the last signal grants for the end; None before a signal.
        self._granted: float | None = None
        # True after SIGHUP, until the next round begins new files.
        self._reopens = False
        # Time from which on no topic could be written, in seconds of the runtime's clock.
        self._all_failed_at: float | None = None
        self._failure: NSQError | None = None
        self._error: BaseException | None = None
        self._results: list[StopResult] = []

    def reader(self, topic: str) -> Reader:
        """Make a Reader of the topic, not started, and repair its files. Any thread may call.

        If the files cannot be written, only this topic fails.
        """
        earlier = self._topics.get(topic)
        if earlier is not None:
            self._forget(earlier)
        made = TopicBackUp(
            lambda: self._make_files(topic),
            self._runtime.lock(),
            self._max_in_flight,
            self._sync_interval,
        )
        made.on_change = self._wake.set
        made.reader = reader = self._make_reader(topic, made.handle)
        made.begin()
        with self._lock:
            self._topics[topic] = made
            self.readers.append(reader)
        return reader

    def run(self, group: Group, stop_timeout: float) -> Ending:
        """Start ``group``, whose Readers come from ``reader()``, and run until its end.

        ``stop_timeout``: seconds for writing received messages after the first signal. Raises the
        error that ended the group. Call it on the main thread, because it handles signals.
        """
        self._group = group
        with ExitStack() as stack:
            stack.enter_context(StopSignals(self._ask, stop_timeout))
            with suppress(ValueError):  # On another thread there are no signals.
                stack.enter_context(handled([signal.SIGHUP], self._ask_to_reopen))
            try:
                group.start(block=False)
                watcher = self._runtime.spawn("nsq-to-file", self._join, group)
                while not (self._over.is_set() or self._failure or self._granted is not None):
                    self._wake.wait(_ROUND_SECONDS)
                    self._wake.clear()
                    self._round()
                self._end(group, stop_timeout)
                watcher.join()
            except BaseException:  # No other code would stop the Readers.
                group.stop(0.0)
                raise
            finally:
                for topic in self._all():
                    topic.close()
        failed = [topic.failure for topic in self._all() if topic.failure is not None]
        error = self._failure or self._error or next(iter(failed), None)
        if error is not None:
            raise error
        return Ending(self._results, asked=self._granted is not None)

    # -- signals and ends ------------------------------------------------------------------------

    def _ask(self, timeout: float) -> None:
        """Begin the end. Called by the signal handler. The second signal does not wait."""
        self._granted = timeout
        self._wake.set()
        if timeout == 0 and self._group is not None:
            self._group.stop(0.0)

    def _ask_to_reopen(self, number: int, frame: FrameType | None) -> None:
        self._reopens = True
        self._wake.set()

    def _join(self, group: Group) -> None:
        try:
            self._results = group.join()
        except BaseException as error:  # noqa: BLE001 - run() raises it
            self._error = error
        finally:
            self._over.set()
            self._wake.set()

    def _end(self, group: Group, stop_timeout: float) -> None:
        """Write, sync and finish the received messages, and end the Readers."""
        deadline = self._runtime.now() + min(stop_timeout, _DRAIN_SECONDS)
        if not self._over.is_set() and self._failure is None:
            for topic in self._all():
                topic.pause()
            while self._granted and (left := deadline - self._runtime.now()) > 0:
                # The event is cleared before the check, so that a message written after the check
                # ends the wait.
                self._wake.clear()
                if all(topic.has_all() for topic in self._all()):
                    break
                self._wake.wait(min(left, _WAKE_SECONDS))
        # Each message is synced at once from here on.
        for topic in self._all():
            topic.sync_always()
        group.stop(stop_timeout if self._granted is None else self._granted)
        while not self._over.wait(_WAKE_SECONDS):
            pass
        self._on_round(self.progress())

    # -- rounds ----------------------------------------------------------------------------------

    def _round(self) -> None:
        reopens, self._reopens = self._reopens, False
        for topic in self._all():
            if reopens:
                topic.reopen()
            topic.tick()
            if topic.has_ended():
                self._forget(topic)
        self._look_at_failures(self._all())
        self._on_round(self.progress())

    def _look_at_failures(self, topics: list[TopicBackUp]) -> None:
        """Log topics that cannot be written. If no topic can be written, end the backup."""
        failed = [topic for topic in topics if topic.failure is not None]
        if not failed or len(failed) < len(topics):
            self._all_failed_at = None
            for topic in topics:
                topic.tell()
        elif self._all_failed_at is None:
            # A new topic, listed at this moment, may be writable, so wait for one round.
            self._all_failed_at = self._runtime.now()
        elif self._runtime.now() - self._all_failed_at >= _ROUND_SECONDS:
            self._failure = failed[0].failure

    def _all(self) -> list[TopicBackUp]:
        with self._lock:
            return list(self._topics.values())

    def _forget(self, topic: TopicBackUp) -> None:
        """Remove a topic that no nsqlookupd lists any more, or that is listed again."""
        topic.close()
        with self._lock:
            reader = topic.reader
            assert reader is not None
            if self._topics.get(reader.topic) is topic:
                del self._topics[reader.topic]
                self.readers.remove(reader)
                self._finished += topic.finished
                self._size += topic.size

    def progress(self) -> Progress:
        topics = self._all()
        return Progress(
            len(topics),
            self._finished + sum(topic.finished for topic in topics),
            sum(topic.held for topic in topics),
            self._size + sum(topic.size for topic in topics),
        )
