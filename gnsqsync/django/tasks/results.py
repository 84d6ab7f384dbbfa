"""Tasks in messages, and results of tasks as rows. Knows the table; knows no nsqd."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db import InterfaceError, OperationalError, connections, router
from django.tasks import Task, TaskResult, TaskResultStatus
from django.tasks.base import TaskError
from django.utils import timezone

from gnsqsync import Reject
from gnsqsync.django.databases import insert_unless_there
from gnsqsync.django.tasks import known
from gnsqsync.django.tasks.storable import MAX_ID, MAX_NAME, MAX_PATH, as_json, check_text

__all__ = [
    "Request",
    "ResultTable",
    "StaleResult",
    "as_row",
    "as_stored",
    "is_outage",
    "result_rows",
    "set_fields",
]

# First and last year of times that every database stores and every zone can show.
_FIRST_YEAR, _LAST_YEAR = 1970, 9998


class StaleResult(Exception):
    """Another worker has ended the task, as its row says. Nothing was written."""


def is_outage(error: BaseException) -> bool:
    """Return True if the database was away or busy; False if it refused a value."""
    return isinstance(error, (OperationalError, InterfaceError))


def set_fields(result: TaskResult[Any, Any], **values: Any) -> None:
    """Change a TaskResult in place, although the class is frozen."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


@dataclass(frozen=True, slots=True)
class Request:
    """The content of a message: a task to call."""

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
        return json.dumps(found, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    @classmethod
    def decode(cls, body: bytes) -> Request:
        """Return the request in a body.

        Raises Reject if the body is no request, or if the table of results cannot store it. Another
        attempt would not help.
        """
        try:
            found: Any = json.loads(body)
            if not isinstance(found, dict):
                raise TypeError(f"it is a {type(found).__name__}, not an object of JSON")
            request = cls(**{name: _decoded(name, value) for name, value in found.items()})
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise Reject(f"the message is no task: {error}") from error
        return request

    def result(self, task: Task[Any, Any], attempts: int) -> TaskResult[Any, Any]:
        """Return a new result, for a task that unknown workers have begun ``attempts`` times."""
        return TaskResult(
            task=task,
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


_LENGTHS = {"id": MAX_ID, "task": MAX_PATH, "backend": MAX_NAME, "queue_name": MAX_NAME}
_KINDS: dict[str, type] = {"args": list, "kwargs": dict}


def _decoded(name: str, value: Any) -> Any:
    """Return the value of a field. Raises TypeError, ValueError or OverflowError."""
    if name in _LENGTHS:
        if not isinstance(value, str):
            raise TypeError(f"{name} is {value!r:.80}, not a text")
        if not 0 < len(value) <= _LENGTHS[name]:
            raise ValueError(f"{name} has {len(value)} characters; it has 1 to {_LENGTHS[name]}")
        check_text(value, name)
        if name == "task" and "." not in value:
            raise ValueError(f"task is {value!r:.80}, not the path of a function in a module")
        return value
    if name in _KINDS:
        if not isinstance(value, _KINDS[name]):
            raise TypeError(f"{name} is {value!r:.80}, not a {_KINDS[name].__name__}")
        return as_json(value, name)
    if name == "run_after" and value is None:
        return None
    if name in ("enqueued_at", "run_after"):
        return as_stored(datetime.fromisoformat(value), name)
    raise TypeError(f"unknown field {name!r:.80}; there are {', '.join(_names())}")


def _names() -> list[str]:
    return [field.name for field in fields(Request)]


def as_stored(when: datetime, name: str) -> datetime:
    """Return the time in the form of this project: with a zone, or without if USE_TZ is False.

    Raises:
        ValueError: Not every database can store the time.
    """
    try:
        aware = when if timezone.is_aware(when) else timezone.make_aware(when)
        is_possible = _FIRST_YEAR <= aware.astimezone(UTC).year <= _LAST_YEAR
    except OverflowError:
        is_possible = False
    if not is_possible:
        raise ValueError(f"{name} is {when}; it must be in the years {_FIRST_YEAR} to {_LAST_YEAR}")
    if timezone.is_aware(when) == bool(settings.USE_TZ):
        return when
    return aware if settings.USE_TZ else timezone.make_naive(aware)


def result_rows() -> Any:
    """Return the rows of all backends, in the database that is written.

    Every answer decides something here, and a replica may answer with an old row.
    """
    # Models can be imported only after all apps are loaded, so not at the top.
    from gnsqsync.django.tasks.models import StoredResult

    return StoredResult.objects.using(router.db_for_write(StoredResult))


class ResultTable:
    """The rows of one backend."""

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def _row(self, id: str) -> Any:
        return result_rows().filter(pk=id, backend=self._backend)

    @property
    def database(self) -> str:
        """Alias of the database that has the rows."""
        name: str = result_rows().db
        return name

    def add(self, result: TaskResult[Any, Any]) -> None:
        """Insert the row, unless it exists: a worker may have inserted it already."""
        request = Request.of(result)
        row = {field: getattr(request, field) for field in Request.__slots__}
        rows = result_rows()
        insert_unless_there(rows.model(**row, **_values(result)), rows.db)

    def take_back(self, id: str) -> None:
        """Delete the row of a task that was not published, unless a worker has begun the task."""
        self._row(id).filter(status=TaskResultStatus.READY, started_at=None).delete()

    def find(self, id: str, task: Task[Any, Any] | None, modules: Any) -> Any:
        """Return the TaskResult of an id, or None. ``task``: its task; None: as the row names it.

        Raises:
            UnknownTask: This process does not know the task.
        """
        row = self._row(id).first()
        if row is None:
            return None
        if task is None:
            task = known.find(row.task, modules, row.queue_name, row.backend, row.run_after)
        return _result(row, task)

    def write(self, result: TaskResult[Any, Any]) -> None:
        """Store a changed result. If the connection fails, try once more on a new one.

        A connection may die while a long call does not use it. A row that was deleted meanwhile is
        inserted again.

        Raises:
            StaleResult: Another worker has ended the task. Only a success replaces a failure.
        """
        try:
            self._write(result)
        except (OperationalError, InterfaceError):
            connection = connections[self.database]
            if connection.in_atomic_block:
                raise
            connection.close()
            self._write(result)

    def _write(self, result: TaskResult[Any, Any]) -> None:
        row = self._row(result.id)
        if result.status == TaskResultStatus.SUCCESSFUL:
            open_row = row.exclude(status=TaskResultStatus.SUCCESSFUL)
        else:
            open_row = row.filter(finished_at=None)
        if open_row.update(**_values(result)):
            return
        if row.exists():
            raise StaleResult(result.id)
        self.add(result)

    def reopen(self, result: TaskResult[Any, Any]) -> None:
        """Reset a failed task, so that it is called again."""
        set_fields(result, status=TaskResultStatus.READY, finished_at=None)
        result.worker_ids.clear()
        self._row(result.id).filter(status=TaskResultStatus.FAILED).update(**_values(result))


def _values(result: TaskResult[Any, Any]) -> dict[str, Any]:
    return {
        "status": result.status,
        "started_at": result.started_at,
        "last_attempted_at": result.last_attempted_at,
        "finished_at": result.finished_at,
        "return_value": getattr(result, "_return_value", None),
        "errors": [as_row(error) for error in result.errors],
        "worker_ids": result.worker_ids,
    }


def as_row(error: TaskError) -> dict[str, str]:
    """Return an error in the form of the rows."""
    return {"exception": error.exception_class_path, "traceback": error.traceback}


def _result(row: Any, task: Task[Any, Any]) -> TaskResult[Any, Any]:
    found: TaskResult[Any, Any] = TaskResult(
        task=task,
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
