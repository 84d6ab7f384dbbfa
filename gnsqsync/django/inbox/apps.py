"""The app of the inbox, with a table of its own."""

from __future__ import annotations

from django.apps import AppConfig

__all__ = ["InboxConfig"]


class InboxConfig(AppConfig):
    name = "gnsqsync.django.inbox"
    label = "gnsqsync_inbox"
    verbose_name: str = "NSQ inbox"
    # The type in the migration, which must not depend on the project's default.
    default_auto_field: str = "django.db.models.BigAutoField"
