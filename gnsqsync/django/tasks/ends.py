"""Ends of tasks without a call: given up, expired, discarded, cancelled.

Knows the table of results; knows no Reader.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.apps import apps
from django.db import Error
from django.tasks import TaskResultStatus
from django.tasks.base import TaskError
from django.tasks.signals import task_finished
from django.utils import timezone

from gnsqsync import Discard, Message, Observer, Reject
from gnsqsync.django.databases import insert_unless_there
from gnsqsync.django.handlers import close_old_connections
from gnsqsync.django.tasks.backend import NsqBackend
from gnsqsync.django.tasks.reasons import TaskCancelled, TaskGivenUp, UnknownTask
from gnsqsync.django.tasks.results import Request, as_row, as_stored, result_rows
from gnsqsync.foreign import class_of, line_of, repr_of, traceback_of

__all__ = ["Ends", "end_all", "task_error", "was_moved"]

log: logging.Logger = logging.getLogger("gnsqsync.django")

# Number of bytes of a body in the log, for a message that no dead letter keeps.
_SHOWN = 500


def task_error(error: BaseException) -> TaskError:
    """Return the error in the form of a result, with texts that every database stores."""
    return TaskError(exception_class_path=class_of(error), traceback=traceback_of(error))


class Ends(Observer):
    """The observer that ends the results of a queue when the Reader itself ends their messages.

    ``on_giving_up`` and ``on_expired``: the project's options of the Reader. ``keeps``: True if a
    given up message becomes a dead letter.
    """

    def __init__(
        self, name: str, backend: NsqBackend, on_giving_up: Any, on_expired: Any, keeps: bool
    ) -> None:
        self._name = name
        self._backend = backend
        self._on_giving_up = on_giving_up
        self._on_expired = on_expired
        # True if a given up message becomes a dead letter.
        self._keeps = keeps

    def give_up(self, message: Message, error: BaseException | None) -> None:
        """End the result, then call the project's ``on_giving_up``.

        The Reader calls this before the FIN. An exception here requeues the message.
        """
        reason = error or TaskGivenUp(
            f"its message was delivered {message.attempts} times (max_deliveries)"
        )
        self._end(message, reason, is_given_up=True)
        if callable(self._on_giving_up):
            self._on_giving_up(message, error)

    def expire(self, message: Message) -> None:
        """Call the project's ``on_expired``, then end the result. The Reader calls this."""
        if callable(self._on_expired):
            # The project's function may raise Reject, or handle the message itself.
            self._on_expired(message)
        reason = "it is older than max_age"
        self._end(message, TaskGivenUp(reason), is_given_up=False)
        if not callable(self._on_expired):
            raise Discard(reason)

    def discarded(self, message: Message, error: BaseException) -> None:
        """End the result of a message that a middleware has discarded before a call. After FIN."""
        self._end(message, error, is_given_up=False)

    def _end(self, message: Message, reason: BaseException, *, is_given_up: bool) -> None:
        try:
            request = Request.decode(message.body)
        except Reject as rejected:
            if not self._keeps:
                log.error(
                    "%s: message %s is dropped, as %s: %s",
                    self._name,
                    message.id,
                    rejected.reason,
                    repr_of(message.body[:_SHOWN]),
                )
            return
        if self._backend.results is None:
            return
        close_old_connections()
        try:
            is_ended = end(request.id, reason, request)
        finally:
            close_old_connections()
        if is_ended:
            log.log(
                logging.ERROR if is_given_up else logging.INFO,
                "%s: task %s (%s) has failed without a call: %s",
                self._name,
                request.id,
                request.task,
                line_of(reason),
            )


def end(id: str, reason: BaseException, request: Request | None = None) -> bool:
    """Give an unfinished task the status FAILED. Return False if it has ended before.

    ``request``: source of a new row if there is none. Sends ``task_finished`` if this process knows
    the task.
    """
    rows = result_rows()
    row = rows.filter(pk=id).first()
    if row is None:
        if request is None:
            return False
        row = rows.model(**{name: getattr(request, name) for name in Request.__slots__})
        row.status = TaskResultStatus.READY
        insert_unless_there(row, rows.db)
    errors = [*row.errors, as_row(task_error(reason))]
    changes = {"status": TaskResultStatus.FAILED, "finished_at": timezone.now(), "errors": errors}
    if not rows.filter(pk=id, finished_at=None).update(**changes):
        return False
    _tell(row.backend, id)
    return True


def _tell(alias: str, id: str) -> None:
    from django.tasks import task_backends

    backend = task_backends[alias] if alias in task_backends.settings else None
    if not isinstance(backend, NsqBackend) or backend.results is None:
        return
    try:
        result = backend.results.find(id, None, backend.modules)
    except UnknownTask as error:
        log.info("task_finished is not sent for task %s: %s", id, error)
        return
    if result is not None:
        task_finished.send_robust(type(backend), task_result=result)


# -- tasks with a time -----------------------------------------------------------------------------


def was_moved(id: str, due: datetime | None) -> None:
    """Note in the caller's transaction that a task was moved. ``due`` None: it was cancelled.

    A key that is no id of a waiting task belongs to another message, and nothing happens.
    """
    if not apps.is_installed("gnsqsync.django.tasks"):
        return
    waiting = result_rows().filter(pk=id, status=TaskResultStatus.READY, started_at=None)
    if due is not None:
        waiting.update(run_after=as_stored(due, "due"))
    elif waiting.exists():
        end(id, TaskCancelled("it was cancelled before it was due"))


def end_all(reasons: Mapping[str, str]) -> int:
    """End the results of tasks, given by id. Return how many had not ended before."""
    ended = 0
    for id, reason in reasons.items():
        try:
            ended += end(id, TaskGivenUp(reason))
        except Error as error:
            log.error("the result of task %s cannot be given an end: %s", id, line_of(error))
    return ended
