"""The inbox: which messages were handled, in the transactions in which they were.

Put ``"gnsqsync.django.inbox"`` into INSTALLED_APPS, migrate, and write ``@nsq_handler(...,
once=True)``.
"""

from __future__ import annotations

from gnsqsync.django.inbox.markers import prune

__all__ = ["prune"]
