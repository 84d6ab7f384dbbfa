"""The log of a stream as its driver uses it: plans, commits, and ids that must be kept.

Opening the log writes nothing. The first epoch writes the first file.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from gnsqsync.spark.open_store import open_store
from gnsqsync.spark.options import SourceOptions
from gnsqsync.spark.plan import Offset, Part, Source, next_offset
from gnsqsync.spark.plans import Plans, refuse_orphans, sources_of
from gnsqsync.spark.returns import Look, Returns
from gnsqsync.spark.seen import IdKeeper
from gnsqsync.spark.settings import open_log
from gnsqsync.spark.wal import LogDamaged, Wal

__all__ = ["StreamLog"]

log: logging.Logger = logging.getLogger("gnsqsync.spark")


class StreamLog:
    """The log of the stream to which ``offset`` belongs.

    ``keeps_ids``: False if no later epoch will ask for ids of deleted entries.
    """

    def __init__(self, options: SourceOptions, offset: Offset, *, keeps_ids: bool = True) -> None:
        self.stream: str = offset["stream"]
        self._options = options
        store = open_store(options.wal_path, options.wal_options)
        self.wal: Wal = Wal(store, self.stream, options.retention)
        self._plans = Plans(self.wal, strict=options.fail_on_data_loss)
        self._returns = Returns()
        self._keeper: IdKeeper | None = None
        if keeps_ids and options.deduplicate:
            self._keeper = IdKeeper(self.wal, self._returns)
        # The newest look at each source after the last epoch.
        self._looks: dict[Source, Look] = {}
        # True once the log has the driver's mark and earlier looks are known.
        self._is_ready = False
        # True while the stream is new and has nothing in the log.
        self._is_fresh = False
        if offset["epoch"] > 0:
            self._make_ready(offset)

    def left_over(self, start: Offset) -> Offset | None:
        """Return the plan of the next epoch that an earlier driver left; None if there is none.

        Raises as Plans.next.
        """
        if not self._is_ready:
            self._is_fresh = self._is_fresh or not self.wal.is_announced()
            if self._is_fresh:
                return None
        self._make_ready(start)
        return self._plans.next(start)

    def plan(self, start: Offset, parts: list[Part]) -> Offset:
        """Put the plan of a new epoch into the log, and return its end. Raises TwoDrivers."""
        self._make_ready(start)
        end = next_offset(self._plans.base(start), parts)
        sources = sources_of(end)
        looks = {source: look for source, look in self._looks.items() if source in sources}
        self._plans.create(end, looks)
        self._returns.planned(end["epoch"], sources)
        self._looks = {}
        return end

    def looked(self, epoch: int, looks: Mapping[Source, Look]) -> None:
        """Take in counts of channels that were read when all tasks of ``epoch`` were over."""
        self._looks.update(looks)
        self._returns.looked(epoch, looks)

    def confirm(self, start: Offset, end: Offset) -> None:
        """Check that the tasks of an epoch may run.

        Raises LogDamaged if Spark and the log have different plans, or if the stream is new and
        walPath has rows that a lost checkpoint left.
        """
        self._make_ready(end)
        self._plans.confirm(end)
        options = self._options
        # A lost checkpoint shows at the first epoch. Spark never passes an empty start; tests do.
        if end["epoch"] != 1:
            return
        known = {self.stream, start.get("stream", self.stream)}
        problem = refuse_orphans(self.wal, known, options.channel, options.topics)
        if problem and options.fail_on_data_loss:
            raise LogDamaged(
                f"{problem}; put the checkpoint back, or publish these rows again or delete them"
                " with 'gnsqsync spark log', or set failOnDataLoss=false to go on without them"
            )
        if problem:
            log.warning("%s; going on, as failOnDataLoss is false", problem)

    def commit(self, epoch: int) -> None:
        """Note that the rows of ``epoch`` are safe in the sink, and delete old epochs."""
        self._make_ready({"epoch": epoch})
        keeper = self._keeper
        keep = keeper.keep if keeper is not None else None
        self.wal.commit(epoch, time.monotonic(), time.time(), keep)
        self._returns.forget(self.wal.marker().keep_from)
        if keeper is not None:
            keeper.drop()

    def _make_ready(self, offset: Offset) -> None:
        """Mark the log, and learn what earlier drivers saw."""
        if self._is_ready:
            return
        open_log(self._options, self.stream, new=offset["epoch"] == 0)
        if offset["epoch"] > 0 and self._keeper is not None:
            self._plans.history(self._returns, offset["epoch"])
        self._is_ready = True
