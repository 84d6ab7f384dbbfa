"""The backend: settings of TASKS, and ``enqueue()``. Knows no worker."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseProblem
from django.db import router, transaction
from django.tasks import Task, TaskResult, TaskResultStatus
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.utils import timezone

from gnsqsync import Reader, envelope
from gnsqsync.django.config import DEFAULT, aliases, get_alias, problems
from gnsqsync.django.tasks.reasons import UnknownTask
from gnsqsync.django.tasks.results import Request, ResultTable, as_stored
from gnsqsync.django.tasks.storable import MAX_NAME, MAX_PATH, as_json, check_text
from gnsqsync.django.writers import get_writer
from gnsqsync.errors import ConfigError
from gnsqsync.hints import meant, right_name
from gnsqsync.options import check_channel, check_topic
from gnsqsync.process.settings import as_if_complete, known_options

__all__ = ["NsqBackend"]

APP = "gnsqsync.django.tasks"
INBOX = "gnsqsync.django.inbox"
OUTBOX = "gnsqsync.django.outbox"

# Default options of the Readers. A task that raises has failed, unless OPTIONS say otherwise, and
# other tasks go on. With the pauses of a Reader 1,000 deliveries take ten days. A task ends then if
# the database is away for longer, or if no worker knows the task.
READER: dict[str, Any] = {
    "max_attempts": 1,
    "max_deliveries": 1000,
    "auto_touch": True,
    "backoff": False,
}

log: logging.Logger = logging.getLogger("gnsqsync.django")


class NsqBackend(BaseTaskBackend):
    """The backend ``"BACKEND": "gnsqsync.django.tasks.NsqBackend"`` in TASKS.

    ``enqueue()`` returns when nsqd has the task, or when the task is a row of the outbox.
    ``manage.py nsq_tasks`` calls each task at least once.

    Raises:
        InvalidTaskBackend: A value in the entry of TASKS is not allowed.
    """

    supports_async_task: bool = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        known = {"alias", "channel", "topics", "outbox", "results", "once", "reader", "modules"}
        for name in self.options:
            if name not in known:
                self._is_wrong(f"has the unknown option {name!r}; {_meant(name, known)}")
        if len(alias) > MAX_NAME:
            raise InvalidTaskBackend(f"TASKS has {alias!r:.80}; a name has {MAX_NAME} characters")
        self.entry: str = self._option("alias", DEFAULT, str)
        self.channel: str = self._option("channel", "tasks", str)
        self.uses_outbox: bool = self._option("outbox", False, bool)
        self.supports_get_result: bool = self._option("results", True, bool)
        self.once: bool | str = self._option("once", False, (bool, str))
        self._topics: dict[str, str] = self._option("topics", {}, dict)
        self.modules: Sequence[str] = self._option("modules", [], (list, tuple))
        if not all(isinstance(module, str) for module in self.modules):
            self._is_wrong(f"has 'modules': {self.modules!r}; it must be a list of module names")
        own = self._option("reader", {}, dict)
        # ``max_deliveries`` stays out, because the handler takes it from an entry of GNSQSYNC, too.
        few = {name: value for name, value in READER.items() if name != "max_deliveries"}
        self.reader: Mapping[str, Any] = {**few, **own}
        self.results: ResultTable | None = ResultTable(alias) if self.supports_get_result else None
        try:
            for queue in {*self.queues, *self._topics}:
                check_topic(self.topic(queue))
            check_channel(self.channel)
            # The constructor checks the options. It starts nothing.
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
        """True if ``run_after`` is possible, which needs the outbox."""
        # Tasks may be made before all apps are loaded, so then the answer is True.
        return not apps.apps_ready or apps.is_installed(OUTBOX)

    @property
    def once_database(self) -> str | None:
        """Alias of the database of ``once``; None without ``once``."""
        return "default" if self.once is True else self.once or None

    def name(self, queue: str) -> str:
        """Return the name of a queue in log lines, which is also the default of its topic.

        Args:
            queue: The queue, as the task names it.
        """
        return ".".join(("tasks", queue) if self.alias == DEFAULT else ("tasks", self.alias, queue))

    def topic(self, queue: str) -> str:
        """Return the topic of a queue's tasks.

        Args:
            queue: The queue, as the task names it.
        """
        found: str = self._topics.get(queue) or self.name(queue)
        return found

    @property
    def known_queues(self) -> list[str]:
        """Queues that the settings name. If QUEUES is [], tasks may name others."""
        return sorted({*self.queues, *self._topics})

    def queues_of(self, topic: str) -> list[str]:
        """Return the queues whose tasks go to a topic.

        Args:
            topic: Name of the topic.
        """
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
        try:
            for name, text, most in (
                ("queue_name", task.queue_name, MAX_NAME),
                ("the path of the task", task.module_path, MAX_PATH),
            ):
                check_text(text, name)
                if len(text) > most:
                    raise ValueError(f"{name} has {len(text)} characters; {most} can be stored")
            if task.run_after is not None:
                as_stored(task.run_after, "run_after")
        except ValueError as error:
            raise InvalidTask(str(error)) from error

    def enqueue(self, task: Task[Any, Any], args: Any, kwargs: Any) -> TaskResult[Any, Any]:
        """Publish the task, or write it to the outbox, as OPTIONS or a ``run_after`` demand.

        The result is stored first, so a task that the database refuses is not published. If this
        raises, the result is deleted again, unless a worker has begun the task.

        Raises:
            InvalidTask: The backend cannot run the task.
            TypeError: An argument is of a type that JSON does not have.
            ValueError: An argument has a part that JSON or a database cannot hold, such as NaN, a
                NUL character, half of a surrogate pair or 100 nested lists.
            PublishError: nsqd has not confirmed the message.
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
            args=as_json(args, "args"),
            kwargs=as_json(kwargs, "kwargs"),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        is_eager = get_alias(self.entry).backend == "eager"
        if is_eager:
            # In eager mode the publish calls the task, so the signal comes before it.
            task_enqueued.send_robust(type(self), task_result=result)
        self._store_and_send(result)
        if is_eager:
            if self.results is not None:
                result.refresh()
        else:
            # The task runs even if a receiver raises, so the signal is robust.
            task_enqueued.send_robust(type(self), task_result=result)
        return result

    def _store_and_send(self, result: TaskResult[Any, Any]) -> None:
        topic, body = self.topic(result.task.queue_name), Request.of(result).encode()
        due = _due(result.task.run_after)
        in_outbox = due is not None or self.uses_outbox
        if in_outbox:
            self._require(OUTBOX, "outbox" if self.uses_outbox else "run_after")
        if self.results is None:
            self._send(result.id, topic, body, due, in_outbox)
            return
        # A worker must see the row of its task, so the row is committed before a publish. Row and
        # outbox can be one transaction if they are in one database.
        is_one = in_outbox and self.results.database == _outbox_database()
        with transaction.atomic(using=self.results.database) if is_one else nullcontext():
            try:
                self.results.add(result)
                self._send(result.id, topic, body, due, in_outbox)
            except BaseException:
                # enqueue() raises, so nobody waits for this result.
                if not is_one:
                    self._take_back(result.id)
                raise

    def _take_back(self, id: str) -> None:
        assert self.results is not None
        try:
            self.results.take_back(id)
        except DatabaseProblem as error:
            # The caller gets the error of the publish.
            log.warning(
                "the result of task %s, which was not published, cannot be deleted: %r", id, error
            )

    def _send(self, id: str, topic: str, body: str, due: datetime | None, in_outbox: bool) -> None:
        if not in_outbox:
            writer = get_writer(self.entry)
            headers = {envelope.KEY: id} if writer.encoder.has_headers else None
            writer.publish(topic, body, headers=headers)
            return
        from gnsqsync.django.outbox.writing import insert

        insert(topic, [body], alias=self.entry, due=due, key=id)

    def _require(self, app: str, what: str) -> None:
        if not apps.is_installed(app):
            raise ImproperlyConfigured(
                f"TASKS[{self.alias!r}]: {what} needs {app!r} in INSTALLED_APPS"
            )

    def get_result(self, result_id: str) -> TaskResult[Any, Any]:
        """Return the result of a task, read from the database that is written.

        Raises:
            TaskResultDoesNotExist: There is no result of that id.
            NotImplementedError: ``"results"`` is False.
            ImportError: This process does not know the task.
        """
        if self.results is None:
            return super().get_result(result_id)
        try:
            found: TaskResult[Any, Any] | None = self.results.find(result_id, None, self.modules)
        except UnknownTask as error:
            raise ImportError(str(error)) from error
        if found is None:
            raise TaskResultDoesNotExist(result_id)
        return found

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Report problems that show only when all apps are loaded: gnsqsync.E006."""
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
        if not texts and self.results is not None and self.once:
            database = self.once_database
            if database != self.results.database:
                texts.append(
                    f"'once' is in the database {database!r}, and the results are in"
                    f" {self.results.database!r}; one transaction needs one database"
                )
        if not [*problems()] and self.entry not in aliases():
            texts.append(f"GNSQSYNC has no entry {self.entry!r}; it has {', '.join(aliases())}")
        return [Error(f"TASKS[{self.alias!r}]: {text}.", id="gnsqsync.E006") for text in texts]


def _outbox_database() -> str:
    from gnsqsync.django.outbox.models import OutboxMessage

    name: str = router.db_for_write(OutboxMessage)
    return name


def _meant(name: object, known: set[str]) -> str:
    option = right_name(str(name))
    if option in known_options() and option not in known:
        return f"put it into 'reader': {{{option!r}: ...}}"
    return meant(str(name), known) or f"there are {', '.join(sorted(known))}"


def _due(run_after: datetime | None) -> datetime | None:
    """Return a future ``run_after`` with its zone; None if the task is due."""
    if run_after is None:
        return None
    due = run_after if timezone.is_aware(run_after) else timezone.make_aware(run_after)
    return due if due > datetime.now(UTC) else None
