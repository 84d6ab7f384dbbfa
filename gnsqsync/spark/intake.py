"""Messages of one nsqd, taken up to a number and a size, held until they are in the log.

Knows the Reader's pull form; must not know the log, except which messages it has.
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

# Before the size of the messages is known: RDY, and how many are taken for a look at their sizes.
_FIRST_RDY = 100
_FIRST_LOOK = 10
# How many are taken at a time later, to check whether their size has changed.
_LOOK = 500
# How often it is looked whether a dial has succeeded or failed.
_DIAL_LOOK = 0.05
# With all of RDY in hand, nothing comes before something is answered; some messages may still be
# on their way here.
_FULL_WAIT = 0.01
# Parts of msg_timeout: how long messages wait in hand for more; and from when on they may come
# too late into the log, since nsqd is about to give them to somebody else.
_PATIENCE = 0.4
_TOO_OLD = 0.8
# For nsqd to answer CLS and to close.
_STOP_SECONDS = 5.0


class Intake(Observer):
    """A connection to the plan's nsqd for one attempt, as a context manager.

    ``hand``: messages taken and not answered, oldest first; ``received_at``: when each was taken,
    microseconds since the epoch. RDY counts what is in flight, and is never above ``room``, so no
    more comes than the budget; what is in flight beyond the hand waits in the Reader.
    ``problem``: why the nsqd was not reached, empty as long as that is not so. ``deduplicated``:
    messages that were dropped, as the log has them.
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
        # How many may be in flight: as the options say, as the server says, as their size says.
        self._limit = settings.max_in_flight
        self._by_size = _FIRST_RDY
        self._rdy = max(0, min(self._flight, self._room))
        self._bytes = 0
        self._taken = 0
        self._taken_bytes = 0
        self._mean = 1.0
        # Set by the reading thread.
        self._connected = False
        self._orphans = False
        self._lost: Exception | None = None
        self._reader = Reader(
            plan.topic,
            plan.channel,
            nsqd_tcp_addresses=[plan.nsqd],
            max_in_flight=self._rdy,
            # Giving up would FIN messages that are not in the log.
            max_attempts=0,
            max_backoff_duration=0,
            latency="throughput",
            observer=self,
            **{
                # nsqd's stats then tell which process of an executor has messages.
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
        """Give back the messages in hand; then CLS, and nsqd's CLOSE_WAIT: every FIN has
        arrived."""
        # An nsqd whose RDY is above 0 answers each REQ with another message. Nobody reads that
        # message, and its attempts grow.
        self.room = 0
        self.give_back()
        self._reader.stop(_STOP_SECONDS)
        try:
            self._reader.join()
        except NSQError:
            # A refusal is known already, as ``problem``.
            if value is None and not self.problem:
                raise

    # -- what the Reader tells, on its reading thread ------------------------------------------

    def connected(self, nsqd_address: str) -> None:
        self._connected = True

    def lost(self, nsqd_address: str, reason: Exception) -> None:
        self._lost = reason
        self._orphans = True

    # -- receiving -----------------------------------------------------------------------------

    def collect(self, *, whole: bool) -> bool:
        """Take messages into ``hand`` until it is a segment; False when no more will come.

        A segment is half of what may be in flight, so that nsqd sends the other half while this
        one is written; all of it with ``whole``, or when that is all there is room for. It has
        no more bodies than ``segment_bytes`` hold, and one.
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
        """Wait until nsqd has taken the subscription; False when it did not, see ``problem``.

        Raises the NSQError of an nsqd that refuses us for good, and with ``must_reach`` of any
        other, unless the plan is ``judged``.
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
        """Up to ``count`` messages: what is there, or what comes first within ``wait`` seconds."""
        fitting = _FIRST_LOOK
        if self._taken:
            fitting = max(1, int((self._settings.segment_bytes - self._bytes) / self._mean))
        batch = next(self._reader.batches(min(count, fitting, _LOOK), wait, 0.0), None)
        if batch is None:
            # It ended by itself: the nsqd refuses us for good, which join() raises.
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
        # Rather too large, in case the latest ones are larger than those before.
        self._mean = max(1.0, size / len(batch), self._taken_bytes / self._taken)
        self._by_size = max(2, int(2 * self._settings.segment_bytes / self._mean))
        self._ask()

    def _drop_seen(self, batch: list[Message], seen: Seen) -> list[Message]:
        """FIN messages that the log has: an earlier attempt died between its entry and the FIN."""
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
        """How many rows the log of the partition may still get."""
        return self._room

    @room.setter
    def room(self, rows: int) -> None:
        self._room = rows
        self._ask()

    def _ask(self) -> None:
        """Set RDY as it should be. Called before FINs, so that a lower RDY reaches nsqd before
        them."""
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
        """Whether nsqd waits for answers: its max_rdy_count is lower than what we asked for."""
        for connection in self._reader.stats().connections:
            if 0 < connection.rdy <= min(connection.in_flight, len(self.hand)):
                self._limit = connection.rdy
                return True
        return False

    @property
    def _age(self) -> float:
        """How long the oldest message is in hand, in parts of msg_timeout."""
        if not self.hand:
            return 0.0
        left = self.hand[0].deadline - time.monotonic()
        return 1.0 - left / self._settings.msg_timeout

    @property
    def too_old(self) -> bool:
        """Whether nsqd may give the messages in hand to others before they are in the log."""
        return self._age >= _TOO_OLD

    # -- answering -----------------------------------------------------------------------------

    def finish_hand(self) -> None:
        """FIN all in hand."""
        self._reader.finish(self.hand)
        self._keep([])

    def finish_those(self, ids: set[str]) -> None:
        """FIN the messages in hand with one of ``ids``: the log has them."""
        if any(message.id in ids for message in self.hand):
            kept = []
            for at, message in enumerate(self.hand):
                if message.id in ids:
                    message.finish()
                else:
                    kept.append(at)
            self._keep(kept)

    def give_back(self, above: int = 0) -> None:
        """REQ 0 for the messages in hand, except the first ``above``."""
        for message in self.hand[above:]:
            message.requeue(0, backoff=False)
        self._keep(range(min(above, len(self.hand))))

    def rows(self) -> tuple[list[Message], list[int]]:
        """The messages in hand that belong into the log, and when each was taken: each id once.

        After a pause of this process nsqd may have sent us messages again that still waited in the
        socket.
        """
        if all(message.attempts == 1 for message in self.hand):
            return self.hand, self.received_at
        first = {message.id: at for at, message in reversed(list(enumerate(self.hand)))}
        places = sorted(first.values())
        return [self.hand[at] for at in places], [self.received_at[at] for at in places]

    def drop_orphans(self) -> None:
        """Forget messages of a connection that is gone: nsqd delivers them again."""
        if self._orphans:
            self._orphans = False
            self._keep([at for at, message in enumerate(self.hand) if message.is_alive])

    def _keep(self, places: Sequence[int]) -> None:
        self.hand = [self.hand[at] for at in places]
        self.received_at = [self.received_at[at] for at in places]
        self._bytes = sum([len(message.body) for message in self.hand])
