"""The app of the tasks, with a table of results and a command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.apps import AppConfig

if TYPE_CHECKING:
    from gnsqsync.django.known_handlers import Known

__all__ = ["TasksConfig"]


class TasksConfig(AppConfig):
    name = "gnsqsync.django.tasks"
    label = "gnsqsync_tasks"
    verbose_name: str = "NSQ tasks"

    def ready(self) -> None:
        from gnsqsync.django.eager import more_handlers
        from gnsqsync.django.known_handlers import more_known_handlers
        from gnsqsync.django.schedule import on_change
        from gnsqsync.django.tasks.ends import was_moved
        from gnsqsync.django.tasks.worker import eager_handlers_of_topic

        if was_moved not in on_change:
            on_change.append(was_moved)
        if eager_handlers_of_topic not in more_handlers:
            more_handlers.append(eager_handlers_of_topic)
        if _known_handlers not in more_known_handlers:
            more_known_handlers.append(_known_handlers)


def _known_handlers() -> Iterator[Known]:
    """Yield a handler for each queue that the settings name.

    The queues of one backend are handled alike, so they may share a topic.
    """
    from gnsqsync.django.known_handlers import Known
    from gnsqsync.django.tasks.worker import backends, handler_of

    for backend in backends():
        for queue in backend.known_queues:
            where = f"the queue {queue!r} of TASKS[{backend.alias!r}]"
            yield Known(handler_of(backend, queue), where, owner=("TASKS", backend.alias))
