"""Readers that write their messages to files, and finish them when they are synced.

A message is written by the worker of its Reader, at once, and detached. Its topic's files are
synced when so many are held that nsqd waits, and by the thread that runs all of it: every sync
interval, and in time before nsqd would take the messages back. Then they are finished.

Why handlers and not ``Reader.batches()``: a batch is written when it is full or its time is over,
so its messages could land in the file of the next hour; and a TopicGroup starts its Readers itself.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import FrameType

from gnsqsync.errors import ClosedError, MessageAnswered, NSQError
from gnsqsync.message import Message, Requeue
from gnsqsync.reader import Reader
from gnsqsync.reader.group import Group
from gnsqsync.runtime import Mutex, choose
from gnsqsync.service.backup.files import TopicFiles
from gnsqsync.service.signals import handled
from gnsqsync.service.supervisor import Ending, StopSignals
from gnsqsync.stats import StopResult

__all__ = ["BackUp", "Progress"]

log: logging.Logger = logging.getLogger("gnsqsync.to_file")

# As go-nsq's IsStarved.
_STARVED = 0.85
# How often to look what is due, and for how long what was received may still be written at a stop.
_ROUND_SECONDS = 0.5
_DRAIN_SECONDS = 5.0
# Waits for the end wake up so often, as a signal that comes just before is handled only then.
_WAKE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Since the start; ``held``: messages that are written and not synced; ``size`` in bytes."""

    topics: int
    finished: int
    held: int
    size: int


class BackUp:
    """Runs a group of Readers that it has made, until a signal comes or a file cannot be written.

    ``make_files``: of a topic. ``make_reader``: of a topic and its handler, with one worker.
    ``sync_interval``: seconds.
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
        # Those that run; the same list always.
        self.readers: list[Reader] = []
        self._make_files = make_files
        self._make_reader = make_reader
        self._max_in_flight = max_in_flight
        self._sync_interval = sync_interval
        self._on_round = on_round
        runtime = choose(None)
        self._runtime = runtime
        # A signal, an error, or the end of all Readers.
        self._wake = runtime.event()
        self._over = runtime.event()
        self._lock: Mutex = runtime.lock()
        self._topics: dict[str, _Topic] = {}
        # Of topics that are gone.
        self._finished = 0
        self._size = 0
        self._group: Group | None = None
        self._granted: float | None = None
        self._reopens = False
        self._failure: NSQError | None = None
        self._error: BaseException | None = None
        self._results: list[StopResult] = []

    def reader(self, topic: str) -> Reader:
        """A new Reader of the topic, not started; its files are put right before. From any thread.

        NSQError when a folder cannot be written, ConfigError for a name of files that cannot be.
        """
        earlier = self._topics.get(topic)
        if earlier is not None:
            self._forget(earlier)
        files = self._make_files(topic)
        files.recover()
        made = _Topic(files, self._runtime.lock(), self._max_in_flight, self._sync_interval)
        made.on_failure = self._fail
        made.on_last = self._wake.set
        made.reader = reader = self._make_reader(topic, made.handle)
        with self._lock:
            self._topics[topic] = made
            self.readers.append(reader)
        return reader

    def run(self, group: Group, stop_timeout: float) -> Ending:
        """Start ``group``, whose Readers are from ``reader()``, and run to its end.

        ``stop_timeout``: seconds for what has to be written after the first signal. Raises what
        made it end by itself. By the main thread: signals.
        """
        self._group = group
        with ExitStack() as stack:
            stack.enter_context(StopSignals(self._ask, stop_timeout))
            with suppress(ValueError):  # not the main thread
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
            except BaseException:  # nobody would stop the Readers
                group.stop(0.0)
                raise
            finally:
                for topic in self._all():
                    topic.close()
        error = self._failure or self._error
        if error is not None:
            raise error
        return Ending(self._results, asked=self._granted is not None)

    # -- signals and ends ------------------------------------------------------------------------

    def _ask(self, timeout: float) -> None:
        """In a signal handler. The second one does not wait."""
        self._granted = timeout
        self._wake.set()
        if timeout == 0 and self._group is not None:
            self._group.stop(0.0)

    def _ask_to_reopen(self, number: int, frame: FrameType | None) -> None:
        self._reopens = True
        self._wake.set()

    def _fail(self, error: NSQError) -> None:
        """By any worker."""
        self._failure = self._failure or error
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
        """Write what has been received, sync and finish it, and end the Readers."""
        deadline = self._runtime.now() + min(stop_timeout, _DRAIN_SECONDS)
        if not self._over.is_set() and self._failure is None:
            for topic in self._all():
                topic.pause()
            while self._granted and (left := deadline - self._runtime.now()) > 0:
                # Before the look, so that what is written behind it wakes this up.
                self._wake.clear()
                if all(topic.has_all() for topic in self._all()):
                    break
                self._wake.wait(min(left, _WAKE_SECONDS))
        # What comes now its Reader waits for.
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
        self._on_round(self.progress())

    def _all(self) -> list[_Topic]:
        with self._lock:
            return list(self._topics.values())

    def _forget(self, topic: _Topic) -> None:
        """Of a topic that no nsqlookupd lists any more, or that is listed again."""
        topic.close()
        with self._lock:
            reader = topic.reader
            assert reader is not None
            if self._topics.get(reader.topic) is topic:
                del self._topics[reader.topic]
                self.readers.remove(reader)
                self._finished += topic.finished
                self._size += topic.files.written

    def progress(self) -> Progress:
        topics = self._all()
        return Progress(
            len(topics),
            self._finished + sum(topic.finished for topic in topics),
            sum(topic.held for topic in topics),
            self._size + sum(topic.files.written for topic in topics),
        )


class _Topic:
    """The files of a topic, and its messages that are written and not synced.

    ``_lock`` guards both, between the Reader's worker and the thread of the rounds. It is held over
    writes and syncs: what the worker has would have to wait for them anyway.
    """

    reader: Reader | None = None
    on_failure: Callable[[NSQError], None]
    # Called when all that was received is written, once the topic is paused.
    on_last: Callable[[], None]

    def __init__(
        self, files: TopicFiles, lock: Mutex, max_in_flight: int, sync_interval: float
    ) -> None:
        self.files: TopicFiles = files
        self.finished: int = 0
        self._lock = lock
        self._max_in_flight = max_in_flight
        self._sync_interval = sync_interval
        self._pending: list[Message] = []
        self._by_nsqd: Counter[str] = Counter()
        # So many of one nsqd make it wait; looked at when nothing is held.
        self._most_of_one = 0
        # In seconds of time.monotonic(), as a message's deadline.
        self._next_tick = time.monotonic() + sync_interval
        self._sync_by = math.inf
        self._is_paused = False
        self._is_closed = False

    @property
    def held(self) -> int:
        return len(self._pending)

    # -- by the worker ---------------------------------------------------------------------------

    def handle(self, message: Message) -> None:
        """The Reader's handler."""
        with self._lock:
            if self._is_closed:
                raise Requeue(0, backoff=False)
            try:
                self._write(message)
            except NSQError as error:
                self._fail(error)
                raise Requeue(0, backoff=False) from None
        if self._is_paused and self.has_all():
            self.on_last()

    def _write(self, message: Message) -> None:
        rotated = self.files.write(message.body)
        if not self._pending:
            now = time.monotonic()
            self._sync_by = now + (message.deadline - now) / 2
            self._most_of_one = self._share()
        message.detach()
        self._pending.append(message)
        self._by_nsqd[message.nsqd_address] += 1
        if (
            rotated
            or len(self._pending) >= self._max_in_flight
            or self._by_nsqd[message.nsqd_address] >= self._most_of_one
        ):
            self._sync()

    def _share(self) -> int:
        reader = self.reader
        nsqds = len(reader.stats().connections) if reader is not None else 1
        return max(1, math.ceil(_STARVED * (self._max_in_flight // max(1, nsqds))))

    # -- by the rounds ---------------------------------------------------------------------------

    def tick(self) -> None:
        """Rotate every sync interval, and sync then, or when nsqd waits or soon would."""
        now = time.monotonic()
        with self._lock:
            if self._is_closed:
                return
            try:
                ticks = now >= self._next_tick
                if ticks:
                    self._next_tick = now + self._sync_interval
                    self.files.tick()
                if self._pending and (ticks or now >= self._sync_by or self._is_starved()):
                    self._sync()
            except NSQError as error:
                self._fail(error)

    def _is_starved(self) -> bool:
        try:
            return self.reader is not None and self.reader.is_starved
        except ClosedError:  # not started yet
            return False

    def sync_always(self) -> None:
        """Now, and at each message that comes."""
        with self._lock:
            self._max_in_flight = 1
            if not self._is_closed:
                try:
                    self._sync()
                except NSQError as error:
                    self._fail(error)

    def reopen(self) -> None:
        """End the file; the next message begins another one."""
        self._end_file(for_good=False)

    def close(self) -> None:
        """What comes now goes back."""
        self._end_file(for_good=True)

    def _end_file(self, *, for_good: bool) -> None:
        with self._lock:
            if self._is_closed:
                return
            try:
                self._sync()
                self.files.close()
                self._is_closed = for_good
            except NSQError as error:
                self._fail(error)

    def pause(self) -> None:
        assert self.reader is not None
        self._is_paused = True
        with suppress(ClosedError):  # not started yet
            self.reader.pause()

    def has_all(self) -> bool:
        """Whether all that was received is written."""
        assert self.reader is not None
        try:
            return self._is_closed or self.reader.stats().in_flight <= len(self._pending)
        except ClosedError:  # not started yet
            return True

    def has_ended(self) -> bool:
        assert self.reader is not None
        try:
            return self.reader.join(0.0) is not None
        except ClosedError:  # not started yet
            return False
        except NSQError:
            return True

    # -- under the lock --------------------------------------------------------------------------

    def _sync(self) -> None:
        self.files.sync()
        pending, self._pending = self._pending, []
        self._by_nsqd.clear()
        self._sync_by = math.inf
        if pending and self.reader is not None:
            self.finished += self.reader.finish(pending)

    def _fail(self, error: NSQError) -> None:
        """Nothing more is written; what is not synced goes back at once."""
        self._is_closed = True
        self.files.abandon()
        pending, self._pending = self._pending, []
        if self.reader is not None:
            self.pause()
            for message in pending:
                with suppress(MessageAnswered):  # nsqd has taken it back
                    message.requeue(0, backoff=False)
        self.on_failure(error)
