"""The inbox: markers of handled messages, written in the handlers' transactions.

Put ``"gnsqsync.django.inbox"`` into INSTALLED_APPS, migrate, and write ``@nsq_handler(...,
once=True)``.
"""

from __future__ import annotations

from gnsqsync.django.inbox.markers import prune

__all__ = ["prune"]
