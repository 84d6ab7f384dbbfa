"""NSQ in a Django project: put ``"gnsqsync.django"`` into INSTALLED_APPS.

An import and Django's start connect to nothing and start no thread. Only the first publish and
``manage.py nsq_consume`` do.
"""

from __future__ import annotations

from gnsqsync.django.handlers import nsq_handler
from gnsqsync.django.writers import get_writer, publish, publish_many, publish_on_commit

__all__ = ["get_writer", "nsq_handler", "publish", "publish_many", "publish_on_commit"]
