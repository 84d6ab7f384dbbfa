"""The plans of epochs in the log of a stream: created once, then adopted or refused.

Spark renames its own files without fsync, so its newest offset may be gone after a power cut. This
log therefore keeps each plan durably before Spark learns of it. Messages that tasks took by a plan
are in the log alone, so no driver may ever plan the same epoch in another way.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.spark.plan import Offset, Source, parts_of
from gnsqsync.spark.returns import Look, Returns
from gnsqsync.spark.wal import LogDamaged, Wal

__all__ = ["Plans", "TwoDrivers", "check_identity", "refuse_orphans"]

log: logging.Logger = logging.getLogger("gnsqsync.spark")


class TwoDrivers(NSQError):
    """Another driver runs the same query: it has planned the epoch that this driver plans."""


class Plans:
    """The plans of one stream as its driver sees them.

    ``strict``: option failOnDataLoss. If it is False, an epoch without its plan is skipped with a
    warning.
    """

    def __init__(self, wal: Wal, *, strict: bool) -> None:
        self._wal = wal
        self._strict = strict
        # The id of this driver. It tells our plan from the plan of another driver.
        self._driver = uuid.uuid4().hex
        # The newest epoch of which an earlier driver left a file; None before the first look.
        self._newest: int | None = None
        # The last plan that this driver created, adopted or found equal to Spark's.
        self._last: Offset | None = None

    def next(self, start: Offset) -> Offset | None:
        """Return the plan in the log for the epoch after ``start``, or None if there is none.

        Raises LogDamaged if an earlier driver has planned this epoch or a later one, and the plan
        is gone.
        """
        epoch = start["epoch"] + 1
        if self._last is not None and self._last["epoch"] == epoch:
            return self._last
        newest = self._look()
        if epoch > newest:
            return None
        found = self._read(epoch)
        if found is not None and epoch >= self._wal.marker().keep_from:
            log.warning(
                "Spark does not know epoch %d, which the log has: it is repeated from the log",
                epoch,
            )
            self._last = found
            return found
        text = (
            f"the log of this query in walPath {self._wal.store.url!r} is at epoch {newest}, and"
            f" Spark asks what comes after epoch {start['epoch']}; the plan of epoch {epoch} is"
            f" gone ({self._wal.plan_name(epoch)}), so its rows cannot be repeated"
        )
        if self._strict:
            raise LogDamaged(
                f"{text}; put the checkpoint and the log back from one copy, or set"
                " failOnDataLoss=false to go on without these rows"
            )
        log.warning("%s; going on, as failOnDataLoss is false", text)
        return None

    def base(self, start: Offset) -> Offset:
        """Return the offset after which the next new epoch is planned.

        The offset is ``start``. With failOnDataLoss=false it is later if plans are gone.
        """
        return {**start, "epoch": max(start["epoch"], self._look())}

    def create(self, end: Offset, looks: Mapping[Source, Look]) -> None:
        """Put the plan of a new epoch into the log. Raises TwoDrivers if the log has another."""
        epoch = end["epoch"]
        fields = {"driver": self._driver, "offset": end, "looks": Returns.stored(looks)}
        if not self._wal.create_plan(epoch, fields):
            found = self._wal.record(self._wal.plan_name(epoch))
            # The plan is our own if the answer to our create got lost.
            if found is None or found.get("driver") != self._driver:
                raise TwoDrivers(
                    f"another driver has planned epoch {epoch} of this query in walPath"
                    f" {self._wal.store.url!r}: two runs share one checkpoint; stop one of them,"
                    " then start this one again"
                )
        self._last = end

    def confirm(self, end: Offset) -> None:
        """Check that Spark and the log have the same plan of an epoch.

        If the log has no plan, Spark's is written there: an older version kept plans in Spark only.
        Raises LogDamaged if the two differ.
        """
        epoch = end["epoch"]
        if self._last is not None and self._last["epoch"] == epoch:
            found: Offset | None = self._last
        else:
            found = self._read(epoch)
        if found is None:
            if epoch >= self._wal.marker().keep_from:
                self._wal.create_plan(epoch, {"driver": self._driver, "offset": end, "looks": []})
        elif parts_of(found) != parts_of(end):
            raise LogDamaged(
                f"Spark's checkpoint and the log in walPath {self._wal.store.url!r} have different"
                f" plans of epoch {epoch} ({self._wal.plan_name(epoch)}), so rows would be lost or"
                " doubled; put the checkpoint and the log back from one copy"
            )
        self._last = end

    def history(self, returns: Returns, until: int) -> None:
        """Pass ``returns`` the looks of earlier drivers before each kept epoch up to ``until``."""
        for epoch in self._wal.planned():
            if epoch > until or self._read(epoch) is None:
                continue
            fields = self._wal.record(self._wal.plan_name(epoch)) or {}
            returns.looked(epoch - 1, Returns.loaded(fields["looks"]))
            returns.planned(epoch, sources_of(fields["offset"]))

    def _look(self) -> int:
        """Return the newest epoch of which an earlier driver left a file, -1 if there is none."""
        if self._newest is None:
            wal = self._wal
            self._newest = max([wal.marker().committed, *wal.planned(), *wal.epochs()])
        return self._newest

    def _read(self, epoch: int) -> Offset | None:
        """Return the plan of an epoch, or None if the log has none.

        A damaged plan raises LogDamaged; without ``strict`` it counts as missing.
        """
        name = self._wal.plan_name(epoch)
        try:
            fields = self._wal.record(name)
            offset = None if fields is None else fields.get("offset")
            if fields is not None and (not isinstance(offset, dict) or offset["epoch"] != epoch):
                raise LogDamaged.file(self._wal.store, name, "it is no plan of this epoch")
        except LogDamaged as error:
            if self._strict:
                raise
            log.warning("%s; going on, as failOnDataLoss is false", error)
            return None
        return offset


def sources_of(offset: Offset) -> set[Source]:
    return {Source(part.nsqd, part.topic) for part in parts_of(offset)}


def check_identity(
    stored: Mapping[str, Any], channel: str, topics: Sequence[str], where: str
) -> None:
    """Raise ConfigError unless ``stored`` may be continued with this channel and these topics.

    Additional topics are allowed: the query reads them from now on. ``stored``: a mark or an
    offset. ``where``: its name in the error.
    """
    known = stored.get("channel", channel)
    if known != channel:
        raise ConfigError(
            f"option 'channel' is {channel!r}, and {where} belongs to channel {known!r}: set"
            f" 'channel' to {known!r}, or begin with a new checkpoint and a new log"
        )
    before = {*stored.get("topics", ()), *(p["t"] for p in stored.get("parts", {}).values())}
    if missing := sorted(before - set(topics)):
        raise ConfigError(
            f"option 'subscribe' is {','.join(topics)!r}, and {where} belongs to"
            f" {','.join(sorted(before))!r}: add {','.join(missing)!r} to 'subscribe', or begin"
            " with a new checkpoint and a new log"
        )


def refuse_orphans(wal: Wal, known: set[str], channel: str, topics: Sequence[str]) -> str:
    """Return a sentence about uncommitted rows of this channel in the logs of other streams.

    Such rows mean that Spark may have lost its first offset. The sentence is empty if there are
    none. ``known``: the streams that Spark's checkpoint knows.
    """
    found = []
    for stream in wal.store.folders():
        if stream in known or stream.startswith("drain-"):
            continue
        other = Wal(wal.store, stream)
        committed = other.marker().committed
        names = [other.entry_name(*place) for place in other.places() if place.epoch > committed]
        for head in other.heads(names):
            # The last entry of a partition tells whether the partition has rows.
            rows = head is not None and (not head.end or head.tally.get("received", 1))
            if head is not None and rows and head.channel == channel and head.topic in topics:
                found.append(stream)
                break
    if not found:
        return ""
    return (
        f"walPath {wal.store.url!r} has rows of channel {channel!r} that no query has committed, in"
        f" {', '.join(found)}: a checkpoint was lost, or another query reads this channel"
    )
