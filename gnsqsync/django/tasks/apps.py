"""The app of the tasks, with a table of results and a command."""

from __future__ import annotations

from django.apps import AppConfig

__all__ = ["TasksConfig"]


class TasksConfig(AppConfig):
    name = "gnsqsync.django.tasks"
    label = "gnsqsync_tasks"
    verbose_name: str = "NSQ tasks"

    def ready(self) -> None:
        from gnsqsync.django.eager import more_handlers
        from gnsqsync.django.schedule import on_change
        from gnsqsync.django.tasks.ends import was_moved
        from gnsqsync.django.tasks.worker import eager_handlers_of_topic

        if was_moved not in on_change:
            on_change.append(was_moved)
        if eager_handlers_of_topic not in more_handlers:
            more_handlers.append(eager_handlers_of_topic)
