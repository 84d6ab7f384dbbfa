"""A backend for Django's tasks. Tasks wait in nsqd or in the outbox for ``manage.py nsq_tasks``.

Put ``"gnsqsync.django.tasks"`` into INSTALLED_APPS and migrate. Needs Django 6.
"""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

try:
    import django.tasks
except ImportError as _error:
    import django

    raise ImproperlyConfigured(
        f"gnsqsync.django.tasks needs Django 6; this is {django.__version__}"
    ) from _error

from gnsqsync.django.tasks.backend import NsqBackend
from gnsqsync.django.tasks.pruning import prune
from gnsqsync.django.tasks.reasons import CallLost, TaskCancelled, TaskGivenUp

__all__ = ["CallLost", "NsqBackend", "TaskCancelled", "TaskGivenUp", "prune"]
