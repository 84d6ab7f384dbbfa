"""What ``nsq_tasks`` does with a message: calls the task, and keeps what became of it.

Knows backends, results and the database around a call; knows no command and no signal.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import Any

from django.db import transaction
from django.tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
from django.tasks.base import TaskError
from django.tasks.signals import task_finished, task_started
from django.utils import timezone
from django.utils.json import normalize_json

from gnsqsync import Message, Reject, Requeue
from gnsqsync.django.handlers import Handler, forget_connections
from gnsqsync.django.once import Once
from gnsqsync.django.tasks.backend import NsqBackend
from gnsqsync.django.tasks.results import Request, set_fields
from gnsqsync.errors import ConfigError, TimeLimitExceeded

__all__ = ["TaskHandler", "backends", "handler_of", "handlers_of_topic"]

log: logging.Logger = logging.getLogger("gnsqsync.django")


@dataclass(eq=False)
class _Call:
    """A task that is called. ``error``: what the task itself raised."""

    result: TaskResult[Any, Any]
    error: BaseException | None = None


# Set where a task is called.
_call: ContextVar[_Call] = ContextVar("gnsqsync_task_call")


def call_task(message: Message) -> object:
    """The task, for as long as ``time_limit`` of the Reader allows."""
    result = _call.get().result
    args = result.args
    if result.task.takes_context:
        args = [TaskContext(task_result=result), *args]
    returned: object = result.task.call(*args, **result.kwargs)
    return returned


@dataclass(frozen=True)
class TaskHandler(Handler):
    """Of the tasks of one queue."""

    backend: NsqBackend = field(kw_only=True, repr=False)
    queue: str = field(kw_only=True)

    def handle(self, message: Message) -> None:
        """Call the task, unless it is known to have ended, and keep what became of it."""
        request = Request.decode(message.body)
        if request.backend != self.backend.alias:
            raise Reject(f"the task is of the backend {request.backend!r}: name another topic")
        result = self._begin(request, message)
        if iscoroutinefunction(result.task.func) and _is_patched():
            # Its event loop would be that of all greenlets, to Django's guard of databases.
            raise ConfigError(
                f"the task {request.task} is a coroutine, which gevent cannot run beside others; it"
                " waits in nsqd for a worker that runs without gevent"
            )
        if result.is_finished:
            log.info("%s: task %s (%s) has ended before", self.name, request.id, request.task)
            return
        self._started(result)
        call = _Call(result)
        _call.set(call)
        try:
            self._run(request, message)
        except (Exception, SystemExit) as error:
            if call.error is None:
                # The result could not be stored, or the marker: the message comes again.
                raise
            self._failed(result, error, message)
        else:
            if result.status == TaskResultStatus.SUCCESSFUL:
                task_finished.send(type(self.backend), task_result=result)

    def _begin(self, request: Request, message: Message) -> TaskResult[Any, Any]:
        try:
            table = self.backend.results
            found = None if table is None else table.find(request.id)
            if found is None:
                found = request.result(message.attempts - 1)
                if table is not None:
                    # Enqueued by a transaction that is not over, or that was rolled back.
                    table.add(found)
                    found = table.find(request.id) or found
        except ImportError as error:
            raise ImportError(
                f"this process does not know the task {request.task} ({error}); it waits in nsqd"
                " for one that does"
            ) from error
        return found

    def _started(self, result: TaskResult[Any, Any]) -> None:
        now = timezone.now()
        result.worker_ids.append(f"{platform.node()}:{os.getpid()}")
        set_fields(
            result,
            status=TaskResultStatus.RUNNING,
            started_at=result.started_at or now,
            last_attempted_at=now,
        )
        self._write(result)
        task_started.send(type(self.backend), task_result=result)

    def _run(self, request: Request, message: Message) -> None:
        if self.once is None or self.database is None:
            self._perform(message)
            return
        with transaction.atomic(using=self.database):
            self.once.run(request.id, message, self._perform)

    def _perform(self, message: Message) -> None:
        call = _call.get()
        try:
            value = normalize_json(self.function(message))
        except (Exception, SystemExit) as error:
            call.error = error
            raise
        set_fields(
            call.result,
            status=TaskResultStatus.SUCCESSFUL,
            finished_at=timezone.now(),
            _return_value=value,
        )
        self._write(call.result)

    def _failed(
        self, result: TaskResult[Any, Any], error: Exception | SystemExit, message: Message
    ) -> None:
        if isinstance(error, TimeLimitExceeded):
            # It may have been interrupted in the middle of a query.
            forget_connections()
        if isinstance(error, Requeue):
            # So the task has asked for it.
            self._again(result)
            raise error
        kind = type(error)
        result.errors.append(
            TaskError(
                exception_class_path=f"{kind.__module__}.{kind.__qualname__}",
                traceback="".join(format_exception(error)),
            )
        )
        most = self.backend.reader["max_attempts"]
        if not 0 < most <= message.attempts:
            self._again(result)
            raise error
        set_fields(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
        self._write(result)
        # Django's own log of it is shown nowhere where DEBUG is False, unless LOGGING says so.
        log.error(
            "%s: task %s (%s) has failed",
            self.name,
            result.id,
            result.task.module_path,
            exc_info=error,
        )
        task_finished.send(type(self.backend), task_result=result)
        if self.backend.reader.get("dead_letter_topic") is not None:
            raise Reject(f"task {result.id} has failed: {error!r}") from error

    def _again(self, result: TaskResult[Any, Any]) -> None:
        set_fields(result, status=TaskResultStatus.READY)
        self._write(result)

    def _write(self, result: TaskResult[Any, Any]) -> None:
        if self.backend.results is not None:
            self.backend.results.write(result)


def _is_patched() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def backends() -> Iterator[NsqBackend]:
    """Those of TASKS that are ours."""
    for alias in task_backends.settings:
        backend = task_backends[alias]
        if isinstance(backend, NsqBackend):
            yield backend


def handler_of(backend: NsqBackend, queue: str) -> TaskHandler:
    """Of the tasks of that queue."""
    database = "default" if backend.once is True else backend.once or None
    # The Reader itself gives no task up: when one has failed is decided here.
    options = {**backend.reader, "max_attempts": 0}
    return TaskHandler(
        name=backend.name(queue),
        topic=backend.topic(queue),
        channel=backend.channel,
        function=call_task,
        alias=backend.entry,
        database=database,
        options=options,
        once=Once(database, None, by_header=False) if database else None,
        backend=backend,
        queue=queue,
    )


def handlers_of_topic(topic: str) -> list[TaskHandler]:
    """For the eager mode."""
    return [
        handler_of(backend, queue) for backend in backends() for queue in backend.queues_of(topic)
    ]
