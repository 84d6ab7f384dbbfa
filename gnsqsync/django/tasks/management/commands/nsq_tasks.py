"""``manage.py nsq_tasks``: call the enqueued tasks until a signal comes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from django.core.management.base import CommandError

from gnsqsync.django.command import add_options
from gnsqsync.django.consume_command import CONSUME, ConsumeCommand
from gnsqsync.django.tasks import known
from gnsqsync.django.tasks.pruning import UNFINISHED, prune_all
from gnsqsync.django.tasks.worker import TaskHandler, backends, handler_of
from gnsqsync.errors import ConfigError
from gnsqsync.stats import counted

__all__ = ["Command"]


class Command(ConsumeCommand):
    help = (
        "Call the tasks that were enqueued. The first signal lets running tasks end and"
        " gives all others back, the second does not wait for tasks, the third ends the process at"
        " once. Exit code 0: stopped by a signal, and every message was answered."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument(
            "queues", nargs="*", metavar="queue", help="Queues; all of QUEUES if none."
        )
        parser.add_argument("--backend", metavar="ALIAS", help="Only this entry of TASKS.")
        parser.add_argument(
            "--prune",
            type=float,
            metavar="DAYS",
            help="Delete the results of tasks that ended DAYS ago, and end.",
        )
        parser.add_argument(
            "--prune-unfinished",
            type=float,
            default=UNFINISHED.days,
            metavar="DAYS",
            help="With --prune: also of tasks that have not ended, DAYS after the last news of"
            f" them. Default: {UNFINISHED.days}.",
        )
        add_options(parser, CONSUME.values())

    def handle(self, **options: Any) -> None:
        days = options["prune"]
        if days is not None:
            self._prune(days, options["prune_unfinished"])
            return
        self.consume(partial(self._handlers, options["backend"], options["queues"]), options)

    def _prune(self, days: float, unfinished: float) -> None:
        for name, value in (("--prune", days), ("--prune-unfinished", unfinished)):
            if not 0 < value <= 36500:  # nan is not
                raise CommandError(f"{name} must be above 0, and at most 36500 days")
        pruned = prune_all(timedelta(days=days), batch=1000, unfinished=timedelta(days=unfinished))
        self.say(f"{counted(pruned.finished, 'result')} deleted")
        if pruned.unfinished:
            self.say(f"{counted(pruned.unfinished, 'result')} of unfinished tasks deleted")
        if pruned.ended:
            self.say(f"{counted(pruned.ended, 'task')} whose message is gone or refused: FAILED")

    def _handlers(self, alias: str | None, queues: Sequence[str]) -> list[TaskHandler]:
        handlers = _handlers(alias, queues)
        for handler in handlers:
            known.load(handler.backend.modules)
        paths = known.paths()
        self.say(f"{counted(len(paths), 'task')} known: {', '.join(paths) or 'none'}")
        return handlers


def _handlers(alias: str | None, queues: Sequence[str]) -> list[TaskHandler]:
    ours = list(backends())
    if not ours:
        raise ConfigError("no entry of TASKS has the backend gnsqsync.django.tasks.NsqBackend")
    chosen = [backend for backend in ours if alias in (None, backend.alias)]
    if not chosen:
        known = ", ".join(backend.alias for backend in ours)
        raise ConfigError(f"--backend is {alias!r}; there are {known}")
    handlers = []
    for backend in chosen:
        # A backend whose QUEUES is [] takes any queue.
        wanted = queues or sorted(backend.queues)
        has = [queue for queue in wanted if not backend.queues or queue in backend.queues]
        handlers += [handler_of(backend, queue) for queue in has]
    there = sorted({queue for backend in chosen for queue in backend.queues})
    found = {handler.queue for handler in handlers}
    for queue in queues:
        if queue not in found:
            raise ConfigError(f"no queue is called {queue!r}; there are {', '.join(there)}")
    if not handlers:
        raise ConfigError("QUEUES is empty, which allows any: name the queues to consume")
    return handlers
