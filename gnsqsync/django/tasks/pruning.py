"""The deletion of old results, and the end of results that nothing else will end.

Knows the tables of results and of the outbox; knows no nsqd.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.db import router
from django.db.models import Q
from django.tasks import TaskResultStatus
from django.utils import timezone

from gnsqsync.django.tasks.ends import end_all
from gnsqsync.django.tasks.results import result_rows
from gnsqsync.options import check_int
from gnsqsync.outbox.due import check_age

__all__ = ["UNFINISHED", "Pruned", "prune", "prune_all"]

# Time without news after which an unfinished task counts as lost. Its message may be gone, because
# its channel was emptied or a process died between the row and the publish.
UNFINISHED = timedelta(days=30)
# Upper bound of the time by which a relay's clock may be ahead, and its messages early.
_MARGIN = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Pruned:
    """Numbers of rows."""

    # Deleted results of tasks that had ended.
    finished: int = 0
    # Deleted results of tasks that had not ended and had no news for long.
    unfinished: int = 0
    # Tasks that have FAILED now, because their message was cancelled or refused.
    ended: int = 0


def prune(older_than: timedelta, *, batch: int = 1000, unfinished: timedelta = UNFINISHED) -> int:
    """Delete the results of tasks that ended long ago, in several transactions.

    A waiting task gets the status FAILED if its row of the outbox was deleted before it was due, or
    has failed for good.

    Args:
        older_than: Time since the end of the tasks.
        batch: Rows of one transaction, 1 or more. Default: 1000.
        unfinished: Time after which unfinished tasks are deleted, at least ``older_than``. It
            counts from the last of enqueueing, due time and last call. A task with a row in the
            outbox stays. If a worker still gets a deleted task, it inserts the row again. Default:
            30 days.

    Returns:
        The number of deleted results.

    Raises:
        ConfigError: A value is not allowed.
    """
    pruned = prune_all(older_than, batch=batch, unfinished=unfinished)
    return pruned.finished + pruned.unfinished


def prune_all(older_than: timedelta, *, batch: int, unfinished: timedelta) -> Pruned:
    """Delete as ``prune()`` does. Return a count for each kind."""
    check_age("older_than", older_than)
    check_age("unfinished", unfinished)
    check_int("batch", batch, 1)
    ended = _end_cancelled(batch)
    now = timezone.now()
    finished = sum(
        result_rows().filter(pk__in=ids).delete()[0]
        for ids in _batches(result_rows().filter(finished_at__lt=now - older_than), batch)
    )
    silent = now - max(older_than, unfinished)
    quiet = (
        Q(finished_at=None, enqueued_at__lt=silent)
        & (Q(run_after=None) | Q(run_after__lt=silent))
        & (Q(last_attempted_at=None) | Q(last_attempted_at__lt=silent))
    )
    deleted = 0
    for ids in _batches(result_rows().filter(quiet), batch):
        gone = set(ids) - _in_outbox(ids)
        # The condition is repeated, because a worker may have begun a task since the first look.
        deleted += result_rows().filter(quiet, pk__in=gone).delete()[0]
    return Pruned(finished, deleted, ended)


def _batches(rows: Any, size: int) -> Iterator[list[str]]:
    """Yield the keys of the rows in order, each once, even if the rows are not deleted."""
    last = ""
    while ids := list(rows.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:size]):
        yield ids
        last = ids[-1]


def _outbox() -> Any:
    """Return the rows of the outbox in the database that is written; None without the app."""
    if not apps.is_installed("gnsqsync.django.outbox"):
        return None
    from gnsqsync.django.outbox.models import OutboxMessage

    return OutboxMessage.objects.using(router.db_for_write(OutboxMessage))


def _in_outbox(ids: list[str]) -> set[str]:
    rows = _outbox()
    return set() if rows is None else set(rows.filter(key__in=ids).values_list("key", flat=True))


def _end_cancelled(batch: int) -> int:
    rows = _outbox()
    if rows is None:
        return 0
    ready = result_rows().filter(status=TaskResultStatus.READY, started_at=None)
    ended = 0
    for ids in _batches(ready.filter(run_after__gt=timezone.now() + _MARGIN), batch):
        gone = set(ids) - _in_outbox(ids)
        ended += end_all(dict.fromkeys(sorted(gone), "its row of the outbox was deleted early"))
    for ids in _batches(ready, batch):
        failed = rows.filter(key__in=ids).exclude(failed_at=None)
        errors = failed.values_list("key", "last_error")
        ended += end_all({key: f"nsqd refused it: {error}" for key, error in errors})
    return ended
