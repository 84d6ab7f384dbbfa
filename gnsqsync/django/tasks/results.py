"""Results of tasks: in messages, and as rows. Knows the table; knows no nsqd."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.tasks import Task, TaskResult, TaskResultStatus
from django.tasks.base import TaskError
from django.utils import timezone
from django.utils.module_loading import import_string

from gnsqsync import Reject
from gnsqsync.errors import ConfigError
from gnsqsync.options import check_int

__all__ = ["Request", "ResultTable", "prune", "set_fields"]


def set_fields(result: TaskResult[Any, Any], **values: Any) -> None:
    """Change a TaskResult in place, which is frozen for those who have one."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


@dataclass(frozen=True, slots=True)
class Request:
    """What is in a message: a task that is to be called."""

    id: str
    task: str
    backend: str
    queue_name: str
    args: list[Any]
    kwargs: dict[str, Any]
    enqueued_at: datetime
    run_after: datetime | None = None

    @classmethod
    def of(cls, result: TaskResult[Any, Any]) -> Request:
        assert result.enqueued_at is not None
        return cls(
            id=result.id,
            task=result.task.module_path,
            backend=result.backend,
            queue_name=result.task.queue_name,
            args=result.args,
            kwargs=result.kwargs,
            enqueued_at=result.enqueued_at,
            run_after=result.task.run_after,
        )

    def encode(self) -> str:
        found: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("id", "task", "backend", "queue_name", "args", "kwargs")
        }
        found["enqueued_at"] = self.enqueued_at.isoformat()
        if self.run_after is not None:
            found["run_after"] = self.run_after.isoformat()
        return json.dumps(found, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def decode(cls, body: bytes) -> Request:
        """Reject for what is no request: no attempt would make it one."""
        try:
            found = json.loads(body)
            for name in ("enqueued_at", "run_after"):
                if name in found:
                    found[name] = datetime.fromisoformat(found[name])
            request = cls(**found)
        except (ValueError, TypeError) as error:
            raise Reject(f"the message is no task: {error}") from error
        for name, kind in _KINDS.items():
            if not isinstance(getattr(request, name), kind):
                raise Reject(f"the message is no task: {name} is {getattr(request, name)!r}")
        return request

    def result(self, attempts: int) -> TaskResult[Any, Any]:
        """Of a task that was not begun, or ``attempts`` times before by workers unknown.

        ImportError where this process does not have the task.
        """
        return TaskResult(
            task=task_of(self.task, self.queue_name, self.backend, self.run_after),
            id=self.id,
            status=TaskResultStatus.READY,
            enqueued_at=self.enqueued_at,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=self.args,
            kwargs=self.kwargs,
            backend=self.backend,
            errors=[],
            worker_ids=["unknown"] * attempts,
        )


_KINDS: dict[str, type] = {
    **dict.fromkeys(("id", "task", "backend", "queue_name"), str),
    "args": list,
    "kwargs": dict,
}


def task_of(path: str, queue_name: str, backend: str, run_after: datetime | None) -> Task[Any, Any]:
    """The task of that path. ImportError where it is none."""
    task: object = import_string(path)
    if not isinstance(task, Task):
        raise ImportError(f"{path} is {task!r}, which is no task")
    return task.using(queue_name=queue_name, backend=backend, run_after=run_after)


class ResultTable:
    """The rows of one backend."""

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def add(self, result: TaskResult[Any, Any]) -> None:
        """Unless it is there: its worker may have been first.

        Waits for the end of a transaction in which it was added.
        """
        request = Request.of(result)
        row = {name: getattr(request, name) for name in Request.__slots__}
        _rows().bulk_create([_rows().model(**row, status=result.status)], ignore_conflicts=True)

    def find(self, id: str) -> TaskResult[Any, Any] | None:
        """ImportError where this process does not have the task."""
        row = _rows().filter(pk=id, backend=self._backend).first()
        return None if row is None else _result(row)

    def write(self, result: TaskResult[Any, Any]) -> None:
        """What has changed since the task began."""
        errors = [
            {"exception": error.exception_class_path, "traceback": error.traceback}
            for error in result.errors
        ]
        _rows().filter(pk=result.id).update(
            status=result.status,
            started_at=result.started_at,
            last_attempted_at=result.last_attempted_at,
            finished_at=result.finished_at,
            return_value=getattr(result, "_return_value", None),
            errors=errors,
            worker_ids=result.worker_ids,
        )


def _rows() -> Any:
    # Models can be imported when all apps are loaded, so not above.
    from gnsqsync.django.tasks.models import StoredResult

    return StoredResult.objects


def _result(row: Any) -> TaskResult[Any, Any]:
    found: TaskResult[Any, Any] = TaskResult(
        task=task_of(row.task, row.queue_name, row.backend, row.run_after),
        id=row.id,
        status=TaskResultStatus(row.status),
        enqueued_at=row.enqueued_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        last_attempted_at=row.last_attempted_at,
        args=row.args,
        kwargs=row.kwargs,
        backend=row.backend,
        errors=[
            TaskError(exception_class_path=error["exception"], traceback=error["traceback"])
            for error in row.errors
        ],
        worker_ids=row.worker_ids,
    )
    set_fields(found, _return_value=row.return_value)
    return found


def prune(older_than: timedelta, *, batch: int = 1000) -> int:
    """Delete the results of tasks that ended so long ago, in transactions of their own.

    Args:
        older_than: Since their end.
        batch: Rows of one transaction, 1 or more.

    Returns:
        How many were deleted.

    Raises:
        ConfigError: A value is not allowed.
    """
    if not isinstance(older_than, timedelta) or not older_than > timedelta(0):
        raise ConfigError(f"older_than is {older_than!r}; it must be a timedelta above 0")
    check_int("batch", batch, 1)
    old = _rows().filter(finished_at__lt=timezone.now() - older_than).order_by("finished_at")
    deleted = 0
    while ids := list(old.values_list("pk", flat=True)[:batch]):
        deleted += _rows().filter(pk__in=ids).delete()[0]
    return deleted
