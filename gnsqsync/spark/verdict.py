"""The verdict on a batch read. Its last task gives it: Spark does not tell the driver of the end.

Knows the log and the nsqds' HTTP API; must not know Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from gnsqsync.errors import NSQError
from gnsqsync.spark.depths import Backlog, Depths
from gnsqsync.spark.open_store import open_store
from gnsqsync.spark.options import SourceOptions
from gnsqsync.spark.plan import Part, Source, budgets_of
from gnsqsync.spark.reach import Progress
from gnsqsync.spark.read_plan import PartitionPlan
from gnsqsync.spark.wal import Wal

__all__ = ["DrainTask", "judged"]

log: logging.Logger = logging.getLogger("gnsqsync.spark")


@dataclass(frozen=True)
class DrainTask:
    """The plans of one task of a batch read, and the parts of all its tasks; picklable."""

    plans: list[PartitionPlan]
    parts: list[Part]


def judged(
    rows: Iterator[pa.RecordBatch], task: DrainTask, options: SourceOptions
) -> Iterator[pa.RecordBatch]:
    """Yield ``rows``. Raise NothingRead after them if no task read any and messages still wait."""
    count = 0
    for batch in rows:
        count += batch.num_rows
        yield batch
    if not count:
        _judge(task, options)


def _judge(task: DrainTask, options: SourceOptions) -> None:
    first = task.plans[0]
    wal = Wal(open_store(options.wal_path, options.wal_options), first.stream)
    heads = wal.last_heads(first.epoch, len(task.parts))
    budgets = budgets_of(task.parts)
    progress = Progress(options.channel, {s: Backlog(n, 0, 0) for s, n in budgets.items()})
    missed = []
    for part, head in zip(task.parts, heads, strict=True):
        # A part without a head is still being read by another task. That task will judge.
        progress.took(None if head is None else head.tally.get("received"))
        progress.took(None if head is None else head.tally.get("deduplicated"))
        if head is not None and head.problem:
            missed.append(Source(part.nsqd, part.topic))
    if progress.took_any:
        return
    depths = Depths(options)
    try:
        depths.start()
        seen = depths.look(whole=True)
    except NSQError as error:
        log.warning("nothing was read, and nobody knows whether messages still wait: %s", error)
        return
    finally:
        depths.close()
    progress.judge(seen, missed, " (a drainId keeps what it has read, so set another one then)")
