"""Partitions of one epoch: from nsqd into the log, and from the log to Spark.

Knows the order that loses no message: in hand, in the log, FIN. Must not know Spark.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa

from gnsqsync.spark.intake import Intake
from gnsqsync.spark.open_store import open_store
from gnsqsync.spark.read_plan import PartitionPlan, ReadSettings
from gnsqsync.spark.rows import Entry, check_columns
from gnsqsync.spark.seen import Seen
from gnsqsync.spark.stores import Store
from gnsqsync.spark.tally import costs_of_process
from gnsqsync.spark.wal import EpochCommitted, LogDamaged, Wal

__all__ = ["peek_partitions", "read_partitions", "try_to_reach"]

log: logging.Logger = logging.getLogger("gnsqsync.spark")

# Seconds for one entry above which the log counts as slow. Large entries are then faster than
# receiving messages while a small entry is written.
_SLOW_CREATE = 0.005
# Number of partitions that a task reads at a time. One after the other would add up the waits for
# the network and the log.
_AT_A_TIME = 8
# Number of nsqds that are tried at a time. Each needs some threads.
_TRIES_AT_A_TIME = 32


def read_partitions(
    plans: Sequence[PartitionPlan], settings: ReadSettings, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the plans, the same rows in every attempt, with exactly ``columns``.

    First the log of each partition is completed: entries that exist are taken, then messages from
    nsqd are added entry by entry. The first batch is yielded only after all connections are closed,
    because Spark may stop pulling at any time, or pull slowly.

    An nsqd that cannot be reached gives no rows, and its entry tells why. Raises EpochCommitted in
    an attempt that is too late, and LogDamaged. Raises the NSQError of an nsqd that refuses us for
    good, unless its plan is ``judged``.
    """
    check_columns(columns)
    at_a_time = min(len(plans), _AT_A_TIME)
    # The options limit a task, so its partitions share them.
    settings = replace(
        settings,
        segment_bytes=max(1, settings.segment_bytes // at_a_time),
        max_bytes_in_memory=settings.max_bytes_in_memory // len(plans),
    )
    store = open_store(settings.wal_path, settings.wal_options)
    tasks = [_Task(plan, settings, store) for plan in plans]
    tasks[0].check_log()
    if at_a_time == 1:
        tasks[0].close()
    else:
        with ThreadPoolExecutor(at_a_time, "gnsqsync-spark-read") as pool:
            # The pool raises the first error only after all partitions have ended.
            for closing in [pool.submit(task.close) for task in tasks]:
                closing.result()
    for task in tasks:
        yield from task.emit(columns)


class _Task:
    """An attempt at one partition. It keeps its entries in memory as far as they fit."""

    def __init__(self, plan: PartitionPlan, settings: ReadSettings, store: Store) -> None:
        self._plan = plan
        self._settings = settings
        self._costs = costs_of_process()
        self._wal = Wal(store, plan.stream, settings.retention)
        # The entries of the partition in order. None for an entry that did not fit into memory.
        self._entries: list[Entry | None] = []
        self._began = time.monotonic()
        # Rows in the entries, and how many of them nsqd had delivered before.
        self._rows = 0
        self._redelivered = 0
        # Bytes of all entries.
        self._bytes = 0
        # True once the partition has its END.
        self._closed = False
        # True if the last entry took longer than _SLOW_CREATE.
        self._slow_log = False

    # -- closing the log ---------------------------------------------------------------------

    def check_log(self) -> None:
        """Raise LogDamaged if this host does not see the log of the driver."""
        self._wal.check_announced()

    def close(self) -> None:
        """Take the entries of the log, then read from nsqd, until the partition has its END.

        Raises LogDamaged if an entry that was made is missing or damaged.
        """
        plan = self._plan
        # The marker is read before the entries. If a commit deletes entries in between, the epoch
        # would otherwise look new.
        committed = self._wal.marker().committed
        if self._take_all():
            return
        if committed >= plan.epoch:
            self._lost(
                f"epoch {plan.epoch} of {plan.topic}/{plan.channel} is committed, and its log in"
                f" {self._settings.wal_path} is gone"
            )
            return
        seen = None
        if self._settings.deduplicate:
            strict = self._settings.fail_on_data_loss
            seen = Seen(self._wal, plan.nsqd, plan.topic, strict=strict)
        with Intake(plan, self._settings, plan.budget - self._rows, seen) as intake:
            while not self._closed:
                with self._costs.timed("receive_seconds"):
                    goes_on = intake.collect(whole=self._slow_log)
                self._write(intake, end=not goes_on or len(intake.hand) >= intake.room)
            written_at = time.monotonic()
        self._costs.add("fin_seconds", time.monotonic() - written_at)

    def _take_all(self) -> bool:
        """Take all entries of the partition from the log. Return True if one of them is its END."""
        plan = self._plan
        for number in range(max(self._wal.numbers(plan.epoch, plan.partition), default=-1) + 1):
            self._take(number)
        return self._closed

    def _take(self, number: int) -> None:
        """Take an entry that the log must have, because a later one exists."""
        plan = self._plan
        entry = self._read(number)
        if entry is None:
            # failOnDataLoss is false: an entry without rows takes the place of the missing one.
            self._append(Entry.of([], [], plan, end=False))
            return
        self._append(entry)
        told = entry.tally.get("received", self._rows)
        if entry.end and told != self._rows:
            self._lost(
                f"partition {plan.partition} of epoch {plan.epoch} in {self._settings.wal_path} has"
                f" {self._rows} rows, and its last entry says {told:.0f}"
            )

    def _read(self, number: int) -> Entry | None:
        """Return an entry that must exist. Without failOnDataLoss: None if it is damaged."""
        plan, store = self._plan, self._wal.store
        try:
            entry = self._wal.read(plan.epoch, plan.partition, number)
            if entry is None:
                name = self._wal.entry_name(plan.epoch, plan.partition, number)
                raise LogDamaged.file(store, name, "it is missing, though it was made")
        except LogDamaged as error:
            if self._settings.fail_on_data_loss:
                raise
            log.warning("%s; going on, as failOnDataLoss is false", error)
            return None
        return entry

    def _adopt(self) -> Entry | None:
        """Take the entry that another attempt made under the next number; None if missing."""
        plan = self._plan
        entry = self._wal.read(plan.epoch, plan.partition, len(self._entries))
        if entry is not None:
            self._append(entry)
        return entry

    def _append(self, entry: Entry) -> None:
        self._bytes += entry.nbytes
        self._rows += entry.rows
        self._redelivered += entry.redelivered
        self._closed = entry.end
        self._entries.append(entry if self._bytes <= self._settings.max_bytes_in_memory else None)

    def _write(self, intake: Intake, end: bool) -> None:
        """Write the messages in hand as an entry and FIN them, or take a faster attempt's entry.

        With ``end`` the END is written after that. The END has no rows, so the loss of an entry
        with rows always leaves a gap before the END. nsqd works on the FINs in the meantime.
        """
        intake.drop_orphans()
        if intake.hand:
            if not self._write_rows(intake):
                return
        elif end:
            self._check_not_committed()
        if end:
            self._write_end(intake)

    def _write_rows(self, intake: Intake) -> bool:
        """Write the messages in hand as an entry. Return True if the entry is our own.

        The marker is read while the messages are in hand. A late attempt may sleep between that and
        the create. If it sleeps less than msg_timeout, the entries of its epoch are still kept, so
        its create fails. If it sleeps longer, nsqd has taken the messages back and refuses the FIN.
        """
        plan = self._plan
        entry = Entry.of(*intake.rows(), plan, end=False)
        data = entry.encode(self._place)
        self._check_not_committed()
        if intake.too_old:
            log.warning("the log was too slow for the messages in hand; they go back to nsqd")
            intake.give_back()
            return False
        if self._create(data):
            self._append(entry)
            intake.room = plan.budget - self._rows
            with self._costs.timed("fin_seconds"):
                intake.finish_hand()
            return True
        self._take_winner(intake)
        return False

    def _write_end(self, intake: Intake) -> None:
        entry = Entry.of([], [], self._plan, end=True, problem=intake.problem)
        costs = self._costs.take()
        with contextlib.ExitStack() as untold:
            untold.callback(self._costs.put_back, costs)
            entry = replace(entry, tally={**self._tally(intake), **costs})
            if self._create(entry.encode(self._place)):
                untold.pop_all()
                self._append(entry)
                return
        self._take_winner(intake)

    @property
    def _place(self) -> str:
        """Name of the next entry within the log of the stream."""
        plan = self._plan
        name = self._wal.entry_name(plan.epoch, plan.partition, len(self._entries))
        return name.removeprefix(f"{plan.stream}/")

    def _check_not_committed(self) -> None:
        plan = self._plan
        if self._wal.marker().committed >= plan.epoch:
            raise EpochCommitted(
                f"epoch {plan.epoch} of {plan.topic}/{plan.channel} was committed while this"
                " attempt read; its messages go back to nsqd"
            )

    def _create(self, data: bytes) -> bool:
        """Make the next entry; return False if another attempt has made it."""
        plan = self._plan
        started = time.monotonic()
        made = self._wal.create(plan.epoch, plan.partition, len(self._entries), data)
        took = time.monotonic() - started
        self._slow_log = took > _SLOW_CREATE
        self._costs.add("log_seconds", took)
        if made:
            self._costs.add("log_bytes", len(data))
        return made

    def _take_winner(self, intake: Intake) -> None:
        """Take the entry that another attempt made first, and FIN the messages that it contains.

        The entry is our own if the answer to our create got lost.
        """
        winner = self._adopt()
        if winner is None:
            raise LogDamaged(f"an entry of {self._plan} vanished from {self._settings.wal_path}")
        intake.room = self._plan.budget - self._rows
        intake.finish_those(set(winner.ids.to_pylist()))
        intake.give_back(above=max(0, intake.room))

    def _tally(self, intake: Intake) -> dict[str, float]:
        """Return the counts of the partition, for its END."""
        return {
            "received": self._rows,
            "redelivered": self._redelivered,
            "deduplicated": intake.deduplicated,
            "seconds": round(time.monotonic() - self._began, 6),
        }

    def _lost(self, text: str) -> None:
        if self._settings.fail_on_data_loss:
            raise LogDamaged(f"{text}; set failOnDataLoss=false to go on without these rows")
        log.warning("%s; going on, as failOnDataLoss is false", text)

    # -- emitting ----------------------------------------------------------------------------

    def emit(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for number, kept in enumerate(self._entries):
            entry = kept or self._read(number)
            if entry is not None and entry.rows:
                yield entry.batch(columns)


def peek_partitions(
    plans: Sequence[PartitionPlan], settings: ReadSettings, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the next messages and give them all back to the channel. Their attempts go up.

    Each plan yields at most ``budget`` messages, ``max_in_flight`` messages, and ``segment_bytes``
    of bodies. Needs no log. Raises as read_partitions.
    """
    check_columns(columns)
    for plan in plans:
        with Intake(plan, settings, plan.budget) as intake:
            intake.collect(whole=True)
            intake.drop_orphans()
            entry = Entry.of(*intake.rows(), plan, end=True)
        if entry.rows:
            yield entry.batch(columns)


def try_to_reach(plans: Sequence[PartitionPlan], settings: ReadSettings) -> list[str]:
    """Subscribe as the tasks of ``plans`` will, many at a time, without taking a message.

    Returns the error of each plan, empty at success. The plans must be ``judged``. The result is
    true for this host only: a task may run on a host that reaches other nsqds.
    """
    problems = []
    for begin in range(0, len(plans), _TRIES_AT_A_TIME):
        with contextlib.ExitStack() as stack:
            intakes = [
                stack.enter_context(Intake(plan, settings, room=0))
                for plan in plans[begin : begin + _TRIES_AT_A_TIME]
            ]
            for intake in intakes:
                intake.reach()
        problems += [intake.problem for intake in intakes]
    return problems
