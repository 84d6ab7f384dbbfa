"""Exceptions in a result's ``errors`` that the task itself did not raise.

Knows nothing.
"""

from __future__ import annotations

__all__ = ["CallLost", "TaskCancelled", "TaskGivenUp", "UnknownTask"]


class TaskGivenUp(Exception):
    """The task will not be called again: it expired, was cancelled, or could not be called."""


class TaskCancelled(TaskGivenUp):
    """``schedule.cancel()`` took the task back. If its message still comes, it is ignored."""


class CallLost(Exception):
    """A worker began a call of the task, and nobody knows how the call ended.

    The worker was killed, or the database was away when the call ended.
    """


class UnknownTask(Exception):
    """This process has no task of that path, or its settings refuse the task."""
