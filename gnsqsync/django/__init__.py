"""NSQ in a Django project: put ``"gnsqsync.django"`` into INSTALLED_APPS.

Nothing is connected and no thread started by an import or by Django's start, only by the first
publish and by ``manage.py nsq_consume``.
"""

from __future__ import annotations

from gnsqsync.django.handlers import nsq_handler
from gnsqsync.django.writers import get_writer, publish, publish_many, publish_on_commit

__all__ = ["get_writer", "nsq_handler", "publish", "publish_many", "publish_on_commit"]
