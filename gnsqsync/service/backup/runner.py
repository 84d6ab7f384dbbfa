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
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import FrameType

from gnsqsync.errors import ClosedError, ConfigError, MessageAnswered, NSQError
from gnsqsync.message import Message, Requeue
from gnsqsync.policy.backoff import ReconnectDelays
from gnsqsync.reader import Reader
from gnsqsync.reader.group import Group
from gnsqsync.runtime import Mutex, choose
from gnsqsync.runtime.troubles import AWAY, duration, more, troubles
from gnsqsync.service.backup.files import CannotBackUp, TopicFiles
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
# After a failure a topic is tried again after these seconds, which double up to the longest ones.
_RETRY_SECONDS = 2.0
_LONGEST_RETRY_SECONDS = 60.0
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
    """Runs a group of Readers that it has made, until a signal comes or no topic can be written.

    A topic that cannot be written gets no messages for a while, and is tried again; the others go
    on. ``make_files``: of a topic. ``make_reader``: of a topic and its handler, with one worker.
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
        # Since when no topic can be written, in seconds of the runtime's clock.
        self._all_failed_at: float | None = None
        self._failure: NSQError | None = None
        self._error: BaseException | None = None
        self._results: list[StopResult] = []

    def reader(self, topic: str) -> Reader:
        """Make a Reader of the topic, not started, and put its files right. From any thread.

        If its files cannot be written, that is a failure of this topic.
        """
        earlier = self._topics.get(topic)
        if earlier is not None:
            self._forget(earlier)
        made = _Topic(
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
        failed = [topic.failure for topic in self._all() if topic.failure is not None]
        error = self._failure or self._error or next(iter(failed), None)
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
        self._look_at_failures(self._all())
        self._on_round(self.progress())

    def _look_at_failures(self, topics: list[_Topic]) -> None:
        """Tell of topics that cannot be written; end all when that is every topic."""
        failed = [topic for topic in topics if topic.failure is not None]
        if not failed or len(failed) < len(topics):
            self._all_failed_at = None
            for topic in topics:
                topic.tell()
        elif self._all_failed_at is None:
            # A topic that is listed now may come a moment later.
            self._all_failed_at = self._runtime.now()
        elif self._runtime.now() - self._all_failed_at >= _ROUND_SECONDS:
            self._failure = failed[0].failure

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
                self._size += topic.size

    def progress(self) -> Progress:
        topics = self._all()
        return Progress(
            len(topics),
            self._finished + sum(topic.finished for topic in topics),
            sum(topic.held for topic in topics),
            self._size + sum(topic.size for topic in topics),
        )


class _Topic:
    """The files of a topic, and its messages that are written and not synced.

    ``_lock`` guards both, between the Reader's worker and the thread of the rounds. It is held over
    writes and syncs: what the worker has would have to wait for them anyway.
    """

    reader: Reader | None = None
    # Called after a failure, and when all that was received is written, once the topic is paused.
    on_change: Callable[[], None]

    def __init__(
        self,
        make_files: Callable[[], TopicFiles],
        lock: Mutex,
        max_in_flight: int,
        sync_interval: float,
    ) -> None:
        # Why nothing can be written now; None while that works.
        self.failure: NSQError | None = None
        self.finished: int = 0
        self._make_files = make_files
        self._lock = lock
        self._max_in_flight = max_in_flight
        self._sync_interval = sync_interval
        # None after a failure.
        self._files: TopicFiles | None = None
        # Bytes that earlier files of this topic took.
        self._size_before = 0
        self._delays = ReconnectDelays(
            initial=_RETRY_SECONDS, maximum=_LONGEST_RETRY_SECONDS, rng=random.Random()
        )
        self._retry_at = math.inf
        # A failure that nobody was told of, and a success after one.
        self._untold: NSQError | None = None
        self._works_again = False
        self._pending: list[Message] = []
        self._by_nsqd: Counter[str] = Counter()
        # So many of one nsqd make it wait; looked at when nothing is held.
        self._most_of_one = 0
        # In seconds of time.monotonic(), as a message's deadline.
        self._next_tick = time.monotonic() + sync_interval
        self._sync_by = math.inf
        self._is_paused = False
        self._is_closed = False

    def begin(self) -> None:
        """Put right what an earlier run left; from then on messages are written."""
        with self._lock:
            try:
                files = self._make_files()
                files.recover()
            except ConfigError as error:
                # The options are fine for other topics.
                self._fail(CannotBackUp(str(error)))
            except NSQError as error:
                self._fail(error)
            else:
                self._files = files
                self.failure = None

    @property
    def size(self) -> int:
        """Bytes of messages and newlines that were written."""
        files = self._files
        return self._size_before + (files.written if files is not None else 0)

    @property
    def held(self) -> int:
        return len(self._pending)

    # -- by the worker ---------------------------------------------------------------------------

    def handle(self, message: Message) -> None:
        """The Reader's handler."""
        with self._lock:
            if self._is_closed or self._files is None:
                raise Requeue(0, backoff=False)
            try:
                self._write(message, self._files)
            except NSQError as error:
                self._fail(error)
                raise Requeue(0, backoff=False) from None
        if self._is_paused and self.has_all():
            self.on_change()

    def _write(self, message: Message, files: TopicFiles) -> None:
        rotated = files.write(message.body)
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
        if self._files is None and not self._is_closed:
            self._try_again(now)
        with self._lock:
            if self._is_closed or self._files is None:
                return
            try:
                ticks = now >= self._next_tick
                if ticks:
                    self._next_tick = now + self._sync_interval
                    self._files.tick()
                if self._pending and (ticks or now >= self._sync_by or self._is_starved()):
                    self._sync()
            except NSQError as error:
                self._fail(error)

    def _try_again(self, now: float) -> None:
        if now < self._retry_at:
            # Its Reader may have started since it failed.
            self._hold(True)
            return
        self.begin()
        if self._files is not None:
            self._hold(False)

    def tell(self) -> None:
        """Log a failure, at growing intervals, and its end."""
        assert self.reader is not None
        place = ("to-file", self.reader.topic)
        error, self._untold = self._untold, None
        if error is not None:
            tell = troubles().began(place, AWAY)
            if tell is not None:
                log.error("topic %s is not written: %s%s", self.reader.topic, error, more(tell))
        elif self._works_again:
            over = troubles().ended(place)
            if over is not None:
                spent = duration(over.seconds)
                log.warning("topic %s is written again, after %s", self.reader.topic, spent)
        self._works_again = False

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
                if self._files is not None:
                    self._files.close()
                self._is_closed = for_good
            except NSQError as error:
                self._fail(error)

    def pause(self) -> None:
        """Receive nothing more, for good. Messages that were received are written."""
        self._is_paused = True
        self._hold(True)

    def _hold(self, held: bool) -> None:
        """Have the Reader receive nothing, or go on."""
        assert self.reader is not None
        with suppress(ClosedError):  # not started yet
            if held:
                self.reader.pause()
            else:
                self.reader.resume()

    def has_all(self) -> bool:
        """Whether all that was received is written."""
        assert self.reader is not None
        try:
            return self._files is None or self.reader.stats().in_flight <= len(self._pending)
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
        if self._files is None:
            return
        self._files.sync()
        pending, self._pending = self._pending, []
        self._by_nsqd.clear()
        self._sync_by = math.inf
        if pending and self.reader is not None:
            self._works_again = True
            self._delays.reset()
            self.finished += self.reader.finish(pending)

    def _fail(self, error: NSQError) -> None:
        """Give unsynced messages back at once. Nothing more is written until a later try."""
        self._size_before = self.size
        files, self._files = self._files, None
        if files is not None:
            files.abandon()
        self.failure = self._untold = error
        self._retry_at = time.monotonic() + self._delays.next()
        pending, self._pending = self._pending, []
        self._by_nsqd.clear()
        self._sync_by = math.inf
        self._hold(True)
        for message in pending:
            with suppress(MessageAnswered):  # nsqd has taken it back
                message.requeue(0, backoff=False)
        self.on_change()
