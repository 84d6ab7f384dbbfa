"""The backend: settings of TASKS, and what ``enqueue()`` does. Knows no worker."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.tasks import Task, TaskResult, TaskResultStatus
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.utils import timezone

from gnsqsync import Reader, envelope
from gnsqsync.django.config import DEFAULT, aliases, get_alias, problems
from gnsqsync.django.tasks.results import Request, ResultTable
from gnsqsync.django.writers import get_writer
from gnsqsync.errors import ConfigError
from gnsqsync.options import check_channel, check_topic, did_you_mean
from gnsqsync.service.settings import as_if_complete

__all__ = ["NsqBackend"]

APP = "gnsqsync.django.tasks"
INBOX = "gnsqsync.django.inbox"
OUTBOX = "gnsqsync.django.outbox"

# Of the Readers. A task that raises has failed, unless OPTIONS say otherwise, and the others go on.
READER: dict[str, Any] = {"max_attempts": 1, "auto_touch": True, "backoff": False}


class NsqBackend(BaseTaskBackend):
    """``"BACKEND": "gnsqsync.django.tasks.NsqBackend"`` in TASKS.

    ``enqueue()`` returns when nsqd has the task, or when it is a row of the outbox; ``manage.py
    nsq_tasks`` calls it. A task is called at least once.

    Raises:
        InvalidTaskBackend: Something in the entry of TASKS is not allowed.
    """

    supports_async_task: bool = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        known = {"alias", "channel", "topics", "outbox", "results", "once", "reader"}
        for name in self.options:
            if name not in known:
                self._is_wrong(f"has the unknown option {name!r}; {_meant(name, known)}")
        self.entry: str = self._option("alias", DEFAULT, str)
        self.channel: str = self._option("channel", "tasks", str)
        self.uses_outbox: bool = self._option("outbox", False, bool)
        self.supports_get_result: bool = self._option("results", True, bool)
        self.once: bool | str = self._option("once", False, (bool, str))
        self._topics: dict[str, str] = self._option("topics", {}, dict)
        self.reader: Mapping[str, Any] = {**READER, **self._option("reader", {}, dict)}
        self.results: ResultTable | None = ResultTable(alias) if self.supports_get_result else None
        try:
            for queue in {*self.queues, *self._topics}:
                check_topic(self.topic(queue))
            check_channel(self.channel)
            # It checks, and starts nothing.
            options = as_if_complete(self.reader)
            Reader("topic", "channel", print, nsqd_tcp_addresses="127.0.0.1:4150", **options)
        except (ConfigError, TypeError) as error:
            self._is_wrong(f"is wrong: {error}")

    def _option(self, name: str, default: Any, kind: type | tuple[type, ...]) -> Any:
        value = self.options.get(name, default)
        if not isinstance(value, kind):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            words = " or ".join(kind.__name__ for kind in kinds)
            self._is_wrong(f"has {name!r}: {value!r}; it must be a {words}")
        return value

    def _is_wrong(self, what: str) -> None:
        raise InvalidTaskBackend(f"TASKS[{self.alias!r}]['OPTIONS'] {what}")

    @property
    def supports_defer(self) -> bool:  # type: ignore[override]
        """``run_after`` is a matter of the outbox."""
        # Tasks may be made before all apps are loaded.
        return not apps.apps_ready or apps.is_installed(OUTBOX)

    def name(self, queue: str) -> str:
        """Of a queue, in log lines; and its topic, unless OPTIONS name one."""
        return ".".join(("tasks", queue) if self.alias == DEFAULT else ("tasks", self.alias, queue))

    def topic(self, queue: str) -> str:
        """Where the tasks of a queue go."""
        found: str = self._topics.get(queue) or self.name(queue)
        return found

    @property
    def known_queues(self) -> list[str]:
        """The queues that the settings name; with QUEUES [] tasks may name others."""
        return sorted({*self.queues, *self._topics})

    def queues_of(self, topic: str) -> list[str]:
        """Those whose tasks go there."""
        queues = self.queues or {*self._topics, topic.removeprefix(self.name(""))}
        return [queue for queue in sorted(queues) if self.topic(queue) == topic]

    def validate_task(self, task: Task[Any, Any]) -> None:
        super().validate_task(task)
        if task.run_after is not None and not self.supports_defer:
            raise InvalidTask(f"run_after needs {OUTBOX!r} in INSTALLED_APPS")
        try:
            check_topic(self.topic(task.queue_name))
        except ConfigError as error:
            raise InvalidTask(
                f"queue {task.queue_name!r}: {error}; name its topic in OPTIONS['topics']"
            ) from error

    def enqueue(self, task: Task[Any, Any], args: Any, kwargs: Any) -> TaskResult[Any, Any]:
        """Publish the task, or write it to the outbox, where it has a ``run_after``, too.

        Raises:
            InvalidTask: The backend cannot have it.
            TypeError: An argument is not for JSON.
            PublishError: nsqd has not confirmed it.
        """
        self.validate_task(task)
        if self.results is not None:
            self._require(APP, "results")
        result: TaskResult[Any, Any] = TaskResult(
            task=task,
            id=envelope.new_key(),
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        is_eager = get_alias(self.entry).backend == "eager"
        if is_eager:
            # It is called within the publish.
            task_enqueued.send(type(self), task_result=result)
        self._send(result)
        if self.results is not None:
            self.results.add(result)
            if is_eager:
                result.refresh()
        if not is_eager:
            task_enqueued.send(type(self), task_result=result)
        return result

    def _send(self, result: TaskResult[Any, Any]) -> None:
        topic, body = self.topic(result.task.queue_name), Request.of(result).encode()
        due = _due(result.task.run_after)
        if due is None and not self.uses_outbox:
            writer = get_writer(self.entry)
            headers = {envelope.KEY: result.id} if writer._has_headers else None
            writer.publish(topic, body, headers=headers)
            return
        self._require(OUTBOX, "outbox" if self.uses_outbox else "run_after")
        from gnsqsync.django.outbox.writing import insert

        insert(topic, [body], alias=self.entry, due=due, key=result.id)

    def _require(self, app: str, what: str) -> None:
        if not apps.is_installed(app):
            raise ImproperlyConfigured(
                f"TASKS[{self.alias!r}]: {what} needs {app!r} in INSTALLED_APPS"
            )

    def get_result(self, result_id: str) -> TaskResult[Any, Any]:
        """What is known of a task.

        Raises:
            TaskResultDoesNotExist: Nothing.
            NotImplementedError: ``"results"`` is False.
        """
        if self.results is None:
            return super().get_result(result_id)
        found = self.results.find(result_id)
        if found is None:
            raise TaskResultDoesNotExist(result_id)
        return found

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """What can only be seen when all apps are loaded: gnsqsync.E006."""
        needs = {APP: "a task backend"}
        if self.uses_outbox:
            needs[OUTBOX] = "'outbox': True"
        if self.once:
            needs[INBOX] = "'once'"
        texts = [
            f"{what} needs {app!r} in INSTALLED_APPS, and manage.py migrate"
            for app, what in needs.items()
            if not apps.is_installed(app)
        ]
        if not [*problems()] and self.entry not in aliases():
            texts.append(f"GNSQSYNC has no entry {self.entry!r}; it has {', '.join(aliases())}")
        return [Error(f"TASKS[{self.alias!r}]: {text}.", id="gnsqsync.E006") for text in texts]


def _meant(name: object, known: set[str]) -> str:
    close = did_you_mean(str(name), known)
    return f"did you mean {close!r}?" if close else f"there are {', '.join(sorted(known))}"


def _due(run_after: datetime | None) -> datetime | None:
    """With its zone; None for what is due."""
    if run_after is None:
        return None
    due = run_after if timezone.is_aware(run_after) else timezone.make_aware(run_after)
    return due if due > datetime.now(UTC) else None
