"""The files of one topic, and its messages that are written but not synced.

Knows a Reader and the files of its topic. Knows no other topic and no signal.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from gnsqsync.errors import ClosedError, ConfigError, MessageAnswered, NSQError
from gnsqsync.message import Message, Requeue
from gnsqsync.policy.backoff import ReconnectDelays
from gnsqsync.process.backup.files import CannotBackUp, TopicFiles
from gnsqsync.reader import Reader
from gnsqsync.runtime import Mutex
from gnsqsync.runtime.troubles import AWAY, duration, more, troubles

__all__ = ["TopicBackUp"]

log: logging.Logger = logging.getLogger("gnsqsync.to_file")

# Share of RDY from which on go-nsq's IsStarved is true.
_STARVED = 0.85
# Seconds after which a failed topic is tried again. Failures in a row double them.
_RETRY_SECONDS = 2.0
# Upper bound of those seconds.
_LONGEST_RETRY_SECONDS = 60.0


class TopicBackUp:
    """The files of a topic, and its messages that are written but not synced.

    The Reader's worker and the thread of the rounds share them, so ``_lock`` guards both. The lock
    is held during writes and syncs, because the worker's next message must wait for them anyway.
    """

    reader: Reader | None = None
    # Called after a failure, and when a paused topic has written all received messages.
    on_change: Callable[[], None]

    def __init__(
        self,
        make_files: Callable[[], TopicFiles],
        lock: Mutex,
        max_in_flight: int,
        sync_interval: float,
    ) -> None:
        # The reason why the topic cannot be written now; None while it can.
        self.failure: NSQError | None = None
        # Number of finished messages.
        self.finished: int = 0
        self._make_files = make_files
        self._lock = lock
        # Number of pending messages at which they are synced. It is 1 after ``sync_always``.
        self._max_in_flight = max_in_flight
        self._sync_interval = sync_interval
        # The open files; None after a failure, until a retry succeeds.
        self._files: TopicFiles | None = None
        # Bytes that were written before the last failure.
        self._size_before = 0
        self._delays = ReconnectDelays(
            initial=_RETRY_SECONDS, maximum=_LONGEST_RETRY_SECONDS, rng=random.Random()
        )
        # Time of the next retry after a failure. Times are in seconds of time.monotonic().
        self._retry_at = math.inf
        # A failure that is not logged yet.
        self._untold: NSQError | None = None
        # True after the first sync after a failure, until that is logged.
        self._works_again = False
        # Messages that are written but not synced.
        self._pending: list[Message] = []
        # Number of those messages by nsqd.
        self._by_nsqd: Counter[str] = Counter()
        # Number of pending messages of one nsqd at which that nsqd waits for answers. It is
        # computed anew when no message is pending.
        self._most_of_one = 0
        # Time of the next rotation and sync.
        self._next_tick = time.monotonic() + sync_interval
        # Time by which pending messages must be synced.
        self._sync_by = math.inf
        # True after ``pause``.
        self._is_paused = False
        # True after ``close``.
        self._is_closed = False

    def begin(self) -> None:
        """Repair the files of an earlier run. From then on messages are written."""
        with self._lock:
            try:
                files = self._make_files()
                files.recover()
            except ConfigError as error:
                # The options may be right for other topics, so only this one fails.
                self._fail(CannotBackUp(str(error)))
            except NSQError as error:
                self._fail(error)
            else:
                self._files = files
                self.failure = None

    @property
    def size(self) -> int:
        """Bytes of written messages and newlines."""
        files = self._files
        return self._size_before + (files.written if files is not None else 0)

    @property
    def held(self) -> int:
        return len(self._pending)

    # -- called by the worker --------------------------------------------------------------------

    def handle(self, message: Message) -> None:
        """Write the message. This is the Reader's handler."""
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

    # -- called by the rounds --------------------------------------------------------------------

    def tick(self) -> None:
        """Rotate and sync every sync interval. Sync earlier if nsqd waits or messages time out."""
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
            # The Reader may have started after the failure, and must be paused then.
            self._hold(True)
            return
        self.begin()
        if self._files is not None:
            self._hold(False)

    def tell(self) -> None:
        """Log a failure at growing intervals, and its end."""
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
        except ClosedError:  # The Reader has not started yet.
            return False

    def sync_always(self) -> None:
        """Sync now, and after each further message."""
        with self._lock:
            self._max_in_flight = 1
            if not self._is_closed:
                try:
                    self._sync()
                except NSQError as error:
                    self._fail(error)

    def reopen(self) -> None:
        """End the file. The next message begins another one."""
        self._end_file(for_good=False)

    def close(self) -> None:
        """End the file for good. Messages that come later are requeued."""
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
        """Receive no more messages, for good. Received messages are still written."""
        self._is_paused = True
        self._hold(True)

    def _hold(self, held: bool) -> None:
        """Pause or resume the Reader."""
        assert self.reader is not None
        with suppress(ClosedError):  # The Reader may not have started yet.
            if held:
                self.reader.pause()
            else:
                self.reader.resume()

    def has_all(self) -> bool:
        """Return True if all received messages are written."""
        assert self.reader is not None
        try:
            return self._files is None or self.reader.stats().in_flight <= len(self._pending)
        except ClosedError:  # The Reader has not started yet.
            return True

    def has_ended(self) -> bool:
        assert self.reader is not None
        try:
            return self.reader.join(0.0) is not None
        except ClosedError:  # The Reader has not started yet.
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
        """Note a failure, and requeue unsynced messages at once. No message is written until a
        retry succeeds."""
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
            with suppress(MessageAnswered):  # The message may have timed out.
                message.requeue(0, backoff=False)
        self.on_change()
