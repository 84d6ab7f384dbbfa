"""The transactional outbox: a message is a row of the caller's transaction until nsqd has it.

Put ``"gnsqsync.django.outbox"`` into INSTALLED_APPS, migrate, and run ``manage.py nsq_relay``.
"""

from __future__ import annotations

from gnsqsync.django.outbox.writing import Lag, lag, publish, publish_many

__all__ = ["Lag", "lag", "publish", "publish_many"]
