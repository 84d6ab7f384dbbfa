"""Messages of one nsqd, taken up to a number and a size, and held until they are in the log.

Knows the Reader's pull form. Knows nothing of the log, except which messages it contains.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from gnsqsync import Message, Observer, Reader
from gnsqsync.errors import ConnectionLost, NSQError
from gnsqsync.stats import counted

if TYPE_CHECKING:
    from gnsqsync.spark.read_plan import PartitionPlan, ReadSettings
    from gnsqsync.spark.seen import Seen

__all__ = ["Intake"]

log: logging.Logger = logging.getLogger("gnsqsync.spark")

# RDY while the size of the messages is unknown.
_FIRST_RDY = 100
# Messages of the first pull, which shows their size.
_FIRST_LOOK = 10
# Upper bound of later pulls, in messages. Each pull shows whether the size has changed.
_LOOK = 500
# Seconds between two looks at a dial.
_DIAL_LOOK = 0.05
# Seconds to wait for messages that are on their way while the hand is not empty. If all of RDY is
# in hand, nsqd sends nothing before we answer.
_FULL_WAIT = 0.01
# Share of msg_timeout for which messages in hand wait for more.
_PATIENCE = 0.4
# Share of msg_timeout after which messages in hand are too old for the log: nsqd is about to give
# them to another consumer.
_TOO_OLD = 0.8
# Seconds for nsqd to answer CLS and for the connection to close.
_STOP_SECONDS = 5.0


class Intake(Observer):
    """A connection to the plan's nsqd for one attempt, as a context manager.

    RDY limits the messages in flight. RDY is never above ``room``, so nsqd sends no more than the
    budget. Messages in flight that are not in ``hand`` wait in the Reader.

    ``hand``: messages that were taken and not answered, oldest first. ``received_at``: the time at
    which each was taken, microseconds since 1970. ``problem``: the error if the nsqd was not
    reached, else empty. ``deduplicated``: number of messages that were dropped because the log has
    them.
    """

    def __init__(
        self, plan: PartitionPlan, settings: ReadSettings, room: int, seen: Seen | None = None
    ) -> None:
        self.hand: list[Message] = []
        self.received_at: list[int] = []
        self.problem: str = ""
        self.deduplicated: int = 0
        self._plan = plan
        self._settings = settings
        self._seen = seen
        self._room = room
        # Upper bound of messages in flight, from the options, or from the server if that is lower.
        self._limit = settings.max_in_flight
        # Upper bound of messages in flight, from their size.
        self._by_size = _FIRST_RDY
        # The RDY that the Reader has been told.
        self._rdy = max(0, min(self._flight, self._room))
        # Bytes of the bodies in hand.
        self._bytes = 0
        # Messages that were ever taken, and the bytes of their bodies.
        self._taken = 0
        self._taken_bytes = 0
        # Estimated bytes of a body, rather too high.
        self._mean = 1.0
        # The reading thread sets the next three.
        # True once nsqd has taken the subscription.
        self._connected = False
        # True if a connection was lost, so that messages in hand may be dead.
        self._orphans = False
        # The reason of the last loss.
        self._lost: Exception | None = None
        self._reader = Reader(
            plan.topic,
            plan.channel,
            nsqd_tcp_addresses=[plan.nsqd],
            max_in_flight=self._rdy,
            # Attempts have no limit, because giving up would FIN messages that are not in the log.
            max_attempts=0,
            max_backoff_duration=0,
            latency="throughput",
            observer=self,
            **{
                # The stats of nsqd then show which process of an executor has messages.
                "client_id": f"spark-{os.getpid()}",
                **settings.connection,
                "msg_timeout": settings.msg_timeout,
            },
        )

    def __enter__(self) -> Intake:
        self._reader.start(block=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give back the messages in hand, then close.

        The close waits for nsqd's CLOSE_WAIT, which shows that nsqd has every FIN.
        """
        # RDY goes to 0 first. With a higher RDY nsqd answers each REQ with another message, which
        # nobody reads and whose attempts grow.
        self.room = 0
        self.give_back()
        self._reader.stop(_STOP_SECONDS)
        try:
            self._reader.join()
        except NSQError:
            # If ``problem`` is set, the refusal is known already.
            if value is None and not self.problem:
                raise

    # -- calls of the Reader, on its reading thread --------------------------------------------

    def connected(self, nsqd_address: str) -> None:
        self._connected = True

    def lost(self, nsqd_address: str, reason: Exception) -> None:
        self._lost = reason
        self._orphans = True

    # -- receiving -----------------------------------------------------------------------------

    def collect(self, *, whole: bool) -> bool:
        """Take messages until ``hand`` is a segment. Return False if no more will come.

        A segment is half of the messages that may be in flight: nsqd sends the other half while
        this half is written. With ``whole``, or if there is no room for more, a segment is all of
        them. A segment ends at the first body that reaches ``segment_bytes``.
        """
        settings = self._settings
        if not self.reach():
            return False
        while (missing := self._segment(whole) - len(self.hand)) > 0:
            if self._bytes >= settings.segment_bytes or self._age >= _PATIENCE:
                return True
            wait = settings.poll_timeout
            batch = self._pull(missing, min(wait, _FULL_WAIT) if self.hand else wait)
            if not batch and self.hand:
                if self._is_full:
                    return True
                left = (_PATIENCE - self._age) * settings.msg_timeout
                batch = self._pull(missing, max(0.0, min(wait, left)))
                if not batch and left < wait:
                    return True
            if not batch:
                return False
            self._accept(batch)
        return True

    def reach(self) -> bool:
        """Wait until nsqd has taken the subscription. Return False, and set ``problem``, if not.

        Unless the plan is ``judged``, raises the NSQError of an nsqd that refuses us for good, and
        with ``must_reach`` ConnectionLost for every other failure.
        """
        while not self._connected:
            lost = self._lost
            if lost is None:
                try:
                    self._accept(self._pull(_LOOK, _DIAL_LOOK))
                    continue
                except NSQError as error:
                    lost = error
            if not self._plan.judged:
                if isinstance(lost, NSQError) and not lost.retriable:
                    raise lost
                if self._settings.must_reach:
                    raise ConnectionLost(
                        f"{self._plan.nsqd} cannot be reached: {lost}"
                        " (option 'failOnUnreachable' is 'any')"
                    )
            log.warning(
                "%s cannot be reached, so this batch has none of its messages: %s",
                self._plan.nsqd,
                lost,
            )
            self.problem = str(lost) or repr(lost)
            return False
        return True

    def _pull(self, count: int, wait: float) -> list[Message]:
        """Return up to ``count`` messages that are here, or the first within ``wait`` seconds."""
        fitting = _FIRST_LOOK
        if self._taken:
            fitting = max(1, int((self._settings.segment_bytes - self._bytes) / self._mean))
        batch = next(self._reader.batches(min(count, fitting, _LOOK), wait, 0.0), None)
        if batch is None:
            # The Reader has ended by itself, because the nsqd refuses us for good: join() raises.
            self._reader.join()
            raise ConnectionLost(f"the reader of {self._plan.nsqd} was stopped")
        return batch

    def _accept(self, batch: list[Message]) -> None:
        if self._seen is not None:
            batch = self._drop_seen(batch, self._seen)
        if not batch:
            return
        size = sum([len(message.body) for message in batch])
        self.hand += batch
        self.received_at += [time.time_ns() // 1000] * len(batch)
        self._bytes += size
        self._taken += len(batch)
        self._taken_bytes += size
        # The higher of the two means counts, in case messages have become larger.
        self._mean = max(1.0, size / len(batch), self._taken_bytes / self._taken)
        self._by_size = max(2, int(2 * self._settings.segment_bytes / self._mean))
        self._ask()

    def _drop_seen(self, batch: list[Message], seen: Seen) -> list[Message]:
        """FIN the messages of ``batch`` that the log has, and return the others.

        An earlier attempt died between writing its entry and the FIN of such a message.
        """
        again = [message.id for message in batch if message.attempts > 1]
        if not again:
            return batch
        known = seen.among(again)
        if known:
            log.info(
                "in the log already: %s of %s", counted(len(known), "message"), self._plan.nsqd
            )
        kept = []
        for message in batch:
            if message.attempts > 1 and message.id in known:
                message.finish()
                self.deduplicated += 1
            else:
                kept.append(message)
        return kept

    @property
    def room(self) -> int:
        """Number of rows that the log of the partition may still get."""
        return self._room

    @room.setter
    def room(self, rows: int) -> None:
        self._room = rows
        self._ask()

    def _ask(self) -> None:
        """Tell the Reader a changed RDY. Called before FINs: nsqd must get a lower RDY first."""
        rdy = max(0, min(self._flight, self._room))
        if rdy != self._rdy:
            self._rdy = rdy
            self._reader.set_max_in_flight(rdy)

    @property
    def _flight(self) -> int:
        return min(self._limit, self._by_size)

    def _segment(self, whole: bool) -> int:
        if whole or self._room <= self._flight:
            return min(self._room, self._flight)
        return max(1, self._flight // 2)

    @property
    def _is_full(self) -> bool:
        """True if nsqd waits for an answer, because its max_rdy_count is below our RDY."""
        for connection in self._reader.stats().connections:
            if 0 < connection.rdy <= min(connection.in_flight, len(self.hand)):
                self._limit = connection.rdy
                return True
        return False

    @property
    def _age(self) -> float:
        """Age of the oldest message in hand, as a share of msg_timeout."""
        if not self.hand:
            return 0.0
        left = self.hand[0].deadline - time.monotonic()
        return 1.0 - left / self._settings.msg_timeout

    @property
    def too_old(self) -> bool:
        """True if nsqd may give the messages in hand to others before they are in the log."""
        return self._age >= _TOO_OLD

    # -- answering -----------------------------------------------------------------------------

    def finish_hand(self) -> None:
        """FIN all messages in hand."""
        self._reader.finish(self.hand)
        self._keep([])

    def finish_those(self, ids: set[str]) -> None:
        """FIN the messages in hand that have one of ``ids``, because the log has them."""
        if any(message.id in ids for message in self.hand):
            kept = []
            for at, message in enumerate(self.hand):
                if message.id in ids:
                    message.finish()
                else:
                    kept.append(at)
            self._keep(kept)

    def give_back(self, above: int = 0) -> None:
        """Requeue the messages in hand without delay, except the first ``above``."""
        for message in self.hand[above:]:
            message.requeue(0, backoff=False)
        self._keep(range(min(above, len(self.hand))))

    def rows(self) -> tuple[list[Message], list[int]]:
        """Return the messages in hand, each id once, and the time at which each was taken.

        An id can be in hand twice: after a pause of this process, nsqd may send messages again
        whose first copies still waited in the socket.
        """
        if all(message.attempts == 1 for message in self.hand):
            return self.hand, self.received_at
        first = {message.id: at for at, message in reversed(list(enumerate(self.hand)))}
        places = sorted(first.values())
        return [self.hand[at] for at in places], [self.received_at[at] for at in places]

    def drop_orphans(self) -> None:
        """Forget messages of a lost connection, because nsqd delivers them again."""
        if self._orphans:
            self._orphans = False
            self._keep([at for at, message in enumerate(self.hand) if message.is_alive])

    def _keep(self, places: Sequence[int]) -> None:
        self.hand = [self.hand[at] for at in places]
        self.received_at = [self.received_at[at] for at in places]
        self._bytes = sum([len(message.body) for message in self.hand])
