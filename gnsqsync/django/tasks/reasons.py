"""Exceptions of tasks that are not the task's own: what a result's ``errors`` name.

Knows nothing.
"""

from __future__ import annotations

__all__ = ["CallLost", "TaskCancelled", "TaskGivenUp", "UnknownTask"]


class TaskGivenUp(Exception):
    """Nobody calls the task any more: it expired, was cancelled, or could not be called."""


class TaskCancelled(TaskGivenUp):
    """``schedule.cancel()`` took the task back. A message of it that comes after all is ignored."""


class CallLost(Exception):
    """A worker began a call of the task, and nobody knows how the call ended.

    The worker was killed, or the database was away when the call ended.
    """


class UnknownTask(Exception):
    """This process has no task of that path, or its settings refuse the task."""
