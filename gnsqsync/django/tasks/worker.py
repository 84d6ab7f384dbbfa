"""The handler of ``nsq_tasks``: calls the task of a message, and stores the end of the call.

Knows backends, results and the database around a call; knows no command and no signal.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import Any

from django.db import transaction
from django.tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
from django.tasks.base import TaskError
from django.tasks.signals import task_finished, task_started
from django.utils import timezone

from gnsqsync import Discard, Message, Reject, Requeue
from gnsqsync.django.config import get_alias
from gnsqsync.django.handlers import Handler, forget_connections
from gnsqsync.django.once import Once
from gnsqsync.django.tasks import known
from gnsqsync.django.tasks.backend import READER, NsqBackend
from gnsqsync.django.tasks.ends import Ends, task_error
from gnsqsync.django.tasks.reasons import CallLost, TaskCancelled, TaskGivenUp, UnknownTask
from gnsqsync.django.tasks.results import Request, StaleResult, is_outage, set_fields
from gnsqsync.django.tasks.storable import as_json
from gnsqsync.django.writers import get_writer
from gnsqsync.errors import ConfigError, TimeLimitExceeded
from gnsqsync.foreign import class_of, ends_worker, line_of
from gnsqsync.options import handler_name
from gnsqsync.process.settings import death_headers, meaning_of

__all__ = [
    "TaskHandler",
    "backends",
    "eager_handlers_of_topic",
    "handler_of",
    "handlers_of_topic",
]

log: logging.Logger = logging.getLogger("gnsqsync.django")

# Number of calls without a known end after which a task fails, if ``max_attempts`` is lower. A
# deployment may kill a worker, but a task that kills its workers must not be called for ever.
LOST_CALLS = 3
# Name of a worker in rows of older versions. It stands for a delivery, perhaps without a call.
UNKNOWN = "unknown"


@dataclass(eq=False)
class _Call:
    """A call of a task.

    ``error``: the exception of the task itself. ``has_begun``: True once the task was called.
    """

    result: TaskResult[Any, Any]
    error: BaseException | None = None
    has_begun: bool = False


# The current call, in the context of a message.
_call: ContextVar[_Call] = ContextVar("gnsqsync_task_call")


def call_task(message: Message) -> object:
    """Call the task. ``time_limit`` of the Reader may interrupt it."""
    result = _call.get().result
    args = result.args
    if result.task.takes_context:
        args = [TaskContext(task_result=result), *args]
    returned: object = result.task.call(*args, **result.kwargs)
    return returned


@dataclass(frozen=True)
class TaskHandler(Handler):
    """The handler of one queue's messages.

    A message is finished when its task has ended, requeued for another try, or rejected. The result
    of a task ends before its message does.
    """

    backend: NsqBackend = field(kw_only=True, repr=False)
    queue: str = field(kw_only=True)
    # Largest number of tries of a task; 0: no limit.
    max_attempts: int = field(default=1, kw_only=True)
    # Function that returns the list of exceptions ("retry_on" and so on) to which an error belongs.
    meaning: Callable[[BaseException], str] = field(kw_only=True, repr=False)
    # True if the Reader has a hook or a topic for messages whose task has failed.
    rejects: bool = field(default=False, kw_only=True)
    dead_letter_topic: str | None = field(default=None, kw_only=True)
    # True if a publish calls the task, without a Reader.
    is_eager: bool = field(default=False, kw_only=True)

    def handle(self, message: Message) -> None:
        """Call the task, unless it has ended before, and store the end of the call."""
        request = Request.decode(message.body)
        if request.backend != self.backend.alias:
            raise Reject(f"the task is of the backend {request.backend!r}: name another topic")
        try:
            result = self._begin(request, message)
        except StaleResult:
            result = None
        except Exception as error:
            told = self._later(request, error, "was not called")
            if told is error:
                raise
            raise told from error
        if result is None:
            log.info("%s: task %s (%s) has ended before", self.name, request.id, request.task)
            return
        call = _Call(result)
        _call.set(call)
        try:
            self._run(request, message)
        except BaseException as error:
            # A task may raise anything. Every exception but the end of this worker is its failure.
            if ends_worker(error):
                raise
            end = self._raised(request, call, error)
            if end is error:
                raise
            if end is not None:
                raise end from error
        else:
            self._ended(call)

    @property
    def gives_up_eagerly(self) -> Callable[[Message, Reject], None] | None:
        """Function that calls the Reader's hook and writes its dead letter; None without both."""
        return self._give_up if self.rejects else None

    def _give_up(self, message: Message, error: Reject) -> None:
        self.options["on_giving_up"](message, error)
        topic = self.dead_letter_topic
        if topic is None:
            return
        writer = get_writer(self.alias)
        headers = None
        if writer.encoder.has_headers:
            headers = death_headers(message, error, handler_name(self))
        writer.publish(topic, message.body, headers=headers)

    # -- before the call -------------------------------------------------------------------------

    def _begin(self, request: Request, message: Message) -> TaskResult[Any, Any] | None:
        """Store the task as RUNNING and return its result; None if the task has ended.

        A failure here does not count as a try.
        """
        task = known.find(
            request.task,
            self.backend.modules,
            request.queue_name,
            request.backend,
            request.run_after,
        )
        if iscoroutinefunction(task.func) and _is_patched():
            # Django's async guard would see the coroutine's event loop in all other greenlets, too.
            raise ConfigError(
                f"the task {request.task} is a coroutine, which gevent cannot run beside others; it"
                " waits in nsqd for a worker that runs without gevent"
            )
        table = self.backend.results
        if table is None:
            result = request.result(task, message.attempts - 1)
        else:
            result = table.find(request.id, task, ())
            if result is None:
                # The transaction that enqueued the task is not over, or was rolled back.
                result = request.result(task, 0)
                table.add(result)
                result = table.find(request.id, task, ()) or result
            # The arguments come from the message, because MySQL keeps only 53 bits of long numbers.
            set_fields(result, args=request.args, kwargs=request.kwargs)
            if result.is_finished:
                if not _is_wanted_again(result, message):
                    return None
                table.reopen(result)
            if result.status == TaskResultStatus.RUNNING and self._is_lost(result):
                return None
        now = timezone.now()
        result.worker_ids.append(f"{platform.node()}:{os.getpid()}")
        set_fields(
            result,
            status=TaskResultStatus.RUNNING,
            started_at=result.started_at or now,
            last_attempted_at=now,
        )
        self._write(result)
        task_started.send_robust(type(self.backend), task_result=result)
        return result

    def _is_lost(self, result: TaskResult[Any, Any]) -> bool:
        """Note that the last call has no known end. Return True if it was the last one allowed."""
        worker = result.worker_ids[-1] if result.worker_ids else UNKNOWN
        lost = CallLost(f"the worker {worker} was killed in this call, or could not store its end")
        result.errors.append(task_error(lost))
        most = self.max_attempts and max(self.max_attempts, LOST_CALLS)
        calls = sum(id != UNKNOWN for id in result.worker_ids)
        if not 0 < most <= calls:
            return False
        reason = TaskGivenUp(f"{calls} calls of it were begun, and the last one has no known end")
        result.errors.append(task_error(reason))
        set_fields(result, status=TaskResultStatus.FAILED, finished_at=timezone.now())
        self._write(result)
        log.error(
            "%s: task %s (%s) has failed: %s",
            self.name,
            result.id,
            result.task.module_path,
            reason,
        )
        self._tell_end(result)
        if self.rejects:
            raise Reject(f"task {result.id} has failed: {reason}")
        return True

    def _later(self, request: Request, error: Exception, what: str) -> Exception:
        """Log why the message comes again, and return the exception for the Reader.

        The exception is a Requeue, because the Reader's lists of exceptions are about the task.
        """
        if isinstance(error, (Reject, Requeue)) or self.is_eager:
            return error
        is_expected = isinstance(error, (UnknownTask, ConfigError)) or is_outage(error)
        log.warning(
            "%s: task %s (%s) %s, its message comes again: %s",
            self.name,
            request.id,
            request.task,
            what,
            line_of(error),
            exc_info=None if is_expected else error,
        )
        return Requeue()

    # -- the call --------------------------------------------------------------------------------

    def _run(self, request: Request, message: Message) -> None:
        if self.once is None or self.database is None:
            self._perform(message)
            return
        with transaction.atomic(using=self.database):
            self.once.run(request.id, message, self._perform)

    def _perform(self, message: Message) -> None:
        call = _call.get()
        call.has_begun = True
        try:
            value = as_json(self.function(message), "the return value")
        except BaseException as error:
            # The error is the task's, and not the database's around it.
            call.error = error
            raise
        set_fields(
            call.result,
            status=TaskResultStatus.SUCCESSFUL,
            finished_at=timezone.now(),
            _return_value=value,
        )
        if self._is_shared:
            self._write(call.result)

    @property
    def _is_shared(self) -> bool:
        """True if the result is written in the transaction of ``once``; False if after it."""
        table = self.backend.results
        return table is None or self.database in (None, table.database)

    # -- after the call --------------------------------------------------------------------------

    def _ended(self, call: _Call) -> None:
        """Store and tell a success. Without a call, the marker says that the task had succeeded."""
        result = call.result
        if not call.has_begun or not self._is_shared:
            finished_at = result.finished_at or timezone.now()
            set_fields(result, status=TaskResultStatus.SUCCESSFUL, finished_at=finished_at)
            try:
                self._write(result)
            except StaleResult:
                return
            except Exception as error:
                raise self._later(
                    Request.of(result), error, "has ended, but its result is not stored"
                ) from error
        self._tell_end(result)

    def _raised(self, request: Request, call: _Call, error: BaseException) -> BaseException | None:
        """Store the end of a call that raised. Return the exception for the Reader; None: FIN."""
        result = call.result
        try:
            if call.error is None and isinstance(error, Exception):
                if not call.has_begun:
                    # The marker could not be written, and the task was not called: no try.
                    self._again(result, is_try=False)
                    return self._later(request, error, "was not called")
                if isinstance(error, StaleResult):
                    raise error
                if is_outage(error):
                    return self._later(
                        request, error, "has ended, but its result may not be stored"
                    )
            return self._failed(result, error)
        except StaleResult:
            log.info("%s: task %s (%s) has ended before", self.name, request.id, request.task)
            return None
        except Exception as wrong:  # noqa: BLE001 - after any error the message comes again
            return self._later(request, wrong, "has ended, but its end is not stored")

    def _failed(self, result: TaskResult[Any, Any], error: BaseException) -> BaseException | None:
        """Store a failure of the task before anything is sent. Return as ``_raised`` does."""
        if isinstance(error, TimeLimitExceeded):
            # The task may have been interrupted in the middle of a query.
            forget_connections()
        if isinstance(error, Requeue):
            # The task itself has asked for another call.
            self._again(result, is_try=False)
            return error
        result.errors.append(task_error(error))
        meaning = self.meaning(error)
        calls = sum(id != UNKNOWN for id in result.worker_ids)
        if self.backend.results is None:
            # Without results nobody counts the calls, so nsqd's deliveries count.
            calls = len(result.worker_ids)
        if meaning == "retry_on" and not 0 < self.max_attempts <= calls:
            self._again(result, is_try=True)
            # In eager mode there is no Reader that knows the lists of exceptions.
            return Requeue() if self.is_eager else error
        set_fields(
            result,
            status=TaskResultStatus.FAILED,
            finished_at=timezone.now(),
            # The database may have refused the return value.
            _return_value=None,
        )
        self._write_failure(result, error)
        # Django logs the failure, too, but shows that nowhere if DEBUG is False.
        log.error(
            "%s: task %s (%s) has failed",
            self.name,
            result.id,
            result.task.module_path,
            exc_info=error,
        )
        self._tell_end(result)
        if meaning == "discard_on":
            return Discard(line_of(error)) if self.is_eager else error
        return Reject(f"task {result.id} has failed: {line_of(error)}") if self.rejects else None

    def _again(self, result: TaskResult[Any, Any], *, is_try: bool) -> None:
        if not is_try:
            result.worker_ids.pop()
        set_fields(result, status=TaskResultStatus.READY)
        self._write(result)

    def _write_failure(self, result: TaskResult[Any, Any], error: BaseException) -> None:
        try:
            self._write(result)
        except StaleResult:
            raise
        except Exception as refusal:
            if is_outage(refusal):
                raise
            # The database may have refused the task's text, so the second try has none of it.
            text = f"The database refused the traceback: {class_of(refusal)}"
            result.errors[:] = [TaskError(exception_class_path=class_of(error), traceback=text)]
            self._write(result)

    def _write(self, result: TaskResult[Any, Any]) -> None:
        if self.backend.results is not None:
            self.backend.results.write(result)

    def _tell_end(self, result: TaskResult[Any, Any]) -> None:
        # The end is stored, so an error of a receiver must not requeue the message.
        task_finished.send_robust(type(self.backend), task_result=result)


def _is_wanted_again(result: TaskResult[Any, Any], message: Message) -> bool:
    """Return True for a failed task whose message was sent after the failure.

    Then somebody has sent back a dead letter, or tries a message of the outbox again. Also return
    True for a task that was given up without a call, unless it was cancelled.
    """
    if result.status != TaskResultStatus.FAILED or result.finished_at is None:
        return False
    if message.timestamp / 1e9 > result.finished_at.timestamp():
        return True
    is_cancelled = any(
        error.exception_class_path.endswith(f".{TaskCancelled.__name__}") for error in result.errors
    )
    return result.started_at is None and not is_cancelled


def _is_patched() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def backends() -> Iterator[NsqBackend]:
    """Yield the entries of TASKS that have this backend."""
    for alias in task_backends.settings:
        backend = task_backends[alias]
        if isinstance(backend, NsqBackend):
            yield backend


def handler_of(backend: NsqBackend, queue: str, *, is_eager: bool = False) -> TaskHandler:
    """Return the handler of a queue's tasks.

    In eager mode another try comes at once, and the MemoryWriter captures dead letters.
    """
    database = backend.once_database
    of_alias = get_alias(backend.entry).options
    given = {**READER, **of_alias, **backend.reader}
    hook, letters = given.get("on_giving_up"), given.get("dead_letter_topic")
    name = backend.name(queue)
    ends = Ends(name, backend, hook, given.get("on_expired"), letters is not None)
    observers = given.get("observer") or []
    # The Reader itself must count no tries, because this handler decides when a task has failed.
    options = {
        **backend.reader,
        "max_deliveries": given["max_deliveries"],
        "max_attempts": 0,
        "on_giving_up": ends.give_up,
        "observer": [ends, *(observers if isinstance(observers, (list, tuple)) else [observers])],
    }
    if given.get("max_age") is not None and given.get("on_expired") != "dead_letter":
        options["on_expired"] = ends.expire
    return TaskHandler(
        name=name,
        topic=backend.topic(queue),
        channel=backend.channel,
        function=call_task,
        alias=backend.entry,
        database=database,
        options=options,
        once=Once(database, None, by_header=False) if database else None,
        backend=backend,
        queue=queue,
        is_eager=is_eager,
        max_attempts=backend.reader["max_attempts"],
        meaning=meaning_of(given),
        rejects=letters is not None or callable(hook),
        dead_letter_topic=letters,
    )


def handlers_of_topic(topic: str, *, is_eager: bool = False) -> list[TaskHandler]:
    """Return the handlers of all queues whose tasks go to a topic."""
    return [
        handler_of(backend, queue, is_eager=is_eager)
        for backend in backends()
        for queue in backend.queues_of(topic)
    ]


def eager_handlers_of_topic(topic: str) -> list[TaskHandler]:
    """Return the handlers of a topic's queues for the eager mode."""
    return handlers_of_topic(topic, is_eager=True)
