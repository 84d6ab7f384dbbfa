"""Letters received and held, one nsqd after the other, until they are answered or given back.

Knows Readers; publishes nothing, and finds no nsqd.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress

from gnsqsync.dead_letters.letter import DeadLetter
from gnsqsync.dead_letters.places import Place
from gnsqsync.errors import ClosedError, ConnectionLost, NSQError
from gnsqsync.message import Message
from gnsqsync.observer import Observer
from gnsqsync.options import ConnectionOptions
from gnsqsync.reader.reader import Reader
from gnsqsync.runtime import Runtime

__all__ = ["Look"]

# Seconds without a message after which the received messages are passed on.
_GATHER = 0.05


class Look:
    """The letters that one ``with`` of DeadLetters holds. ``close()`` gives them back.

    ``problems``: list that gets a sentence for each nsqd that could not be looked at to the end.
    ``looked_at``: number of letters so far. ``stopped``: True once ``stop()`` was called.
    """

    def __init__(
        self,
        topic: str,
        limit: int,
        patience: float,
        options: ConnectionOptions,
        runtime: Runtime,
    ) -> None:
        self.looked_at: int = 0
        self.stopped: bool = False
        self.problems: list[str] = []
        self.runtime: Runtime = runtime
        self._topic = topic
        self._limit = limit
        self._patience = patience
        self._options = options
        # Readers that hold letters.
        self._readers: list[Reader] = []
        # Letters that were yielded, by nsqd and id.
        self._seen: set[tuple[str, str]] = set()
        # The newest delivery of each letter that is held, by nsqd and id.
        self._held: dict[tuple[str, str], Message] = {}
        # An item in it ends the wait of a rate.
        self._word = runtime.timed_queue()

    def close(self) -> None:
        """Give back the letters that are not answered."""
        # Every Reader is paused first: otherwise one would get letters that another gives back.
        for reader in self._readers:
            reader.pause()
        while self._readers:
            # ``problems`` has the error of a Reader already.
            with suppress(NSQError):
                self._readers.pop().__exit__()

    def stop(self) -> None:
        """End the letters. Any thread or signal handler may call this."""
        self.stopped = True
        self._word.put(None)
        for reader in list(self._readers):
            reader.stop()

    def is_stopped_in(self, seconds: float) -> bool:
        """Wait for these seconds. Return True, at once, if ``stop()`` was called."""
        if not self.stopped:
            with suppress(TimeoutError):
                self._word.get(seconds)
        return self.stopped

    def letters(self, places: Iterable[Place], window: int) -> Iterator[DeadLetter]:
        """Yield each letter once. ``window``: number of letters on their way, besides held ones."""
        for place in places:
            if place.waiting != 0:
                yield from self._at(place, window)

    def mine(self, letter: DeadLetter) -> Message:
        """Return the newest delivery of a letter.

        Raises ClosedError if the letter is not held, and ConnectionLost if nsqd has taken it back.
        """
        message = self._held.get((letter.nsqd, letter.message_id))
        if message is None:
            raise ClosedError(f"letter {letter.id} is not held here")
        if not message.is_alive or self.runtime.now() >= message.hard_deadline:
            raise ConnectionLost(f"nsqd has taken letter {letter.id} back; it comes again")
        return message

    def finish(self, message: Message, what: str) -> None:
        """Finish a message. Raise ConnectionLost if the FIN comes too late.

        ``what``: words in the error that tell the letter's fate.
        """
        if not message.finish():
            raise ConnectionLost(f"letter {message.id} {what}, but it comes again: FIN was late")
        self._held.pop((message.nsqd_address, message.id), None)

    def _at(self, place: Place, window: int) -> Iterator[DeadLetter]:
        """Yield the letters of one nsqd, over several connections if --max-rdy-count is low."""
        end = self._limit
        if place.waiting is not None:
            end = min(end, self.looked_at + place.waiting)
        holds_more = True
        while holds_more and self.looked_at < end and not self.stopped:
            losses = _Losses()
            try:
                holds_more = yield from self._take(place, losses, end, window)
            except NSQError as error:
                self.problems.append(f"nsqd {place.nsqd}: {error}")
                return
            if losses.reason is not None and not self.stopped:
                self.problems.append(f"nsqd {place.nsqd}: {losses.reason}")
                return

    def _take(
        self, place: Place, losses: _Losses, end: int, window: int
    ) -> Generator[DeadLetter, None, bool]:
        """Yield letters over one connection until ``end`` letters were looked at.

        Return True if another connection may get more.
        """
        reader = Reader(
            self._topic,
            place.channel,
            nsqd_tcp_addresses=[place.nsqd],
            max_in_flight=min(window, end - self.looked_at),
            max_attempts=0,
            latency="throughput",
            auto_touch=True,
            observer=losses,
            runtime=self.runtime,
            options=self._options,
        )
        reader.start(block=False)
        self._readers.append(reader)
        connect_by = self.runtime.now() + self._options.connect_timeout
        mine: list[Message] = []
        for batch in reader.batches(window, self._patience, _GATHER):
            for message in batch:
                key = message.nsqd_address, message.id
                if key in self._seen:
                    # nsqd delivers a letter again if it was held for too long, or if its FIN was
                    # lost.
                    if key in self._held:
                        self._held[key] = message
                elif self.looked_at < end and not self.stopped:
                    self._seen.add(key)
                    self._held[key] = message
                    self.looked_at += 1
                    yield DeadLetter.of(message)
                mine.append(message)
            if self.looked_at >= end or self.stopped:
                return False
            mine = [message for message in mine if message.is_alive]
            if not batch:
                connections = reader.stats().connections
                if connections:
                    return 0 < connections[0].rdy <= len(mine)
                if losses.reason is not None or self.runtime.now() >= connect_by:
                    losses.reason = losses.reason or ConnectionLost("it cannot be reached")
                    return False
            reader.set_max_in_flight(len(mine) + min(window, end - self.looked_at))
        if not self.stopped:
            # The Reader ended by itself, so join() raises the reason.
            reader.join()
        return False


class _Losses(Observer):
    """An observer that keeps the reason why a connection ended or could not be made."""

    reason: Exception | None = None

    def lost(self, nsqd_address: str, reason: Exception) -> None:
        self.reason = reason
