"""The app of the outbox, with a table of its own."""

from __future__ import annotations

from django.apps import AppConfig

__all__ = ["OutboxConfig"]


class OutboxConfig(AppConfig):
    name = "gnsqsync.django.outbox"
    label = "gnsqsync_outbox"
    verbose_name: str = "NSQ outbox"
    # The type in the migration, which must not depend on the project's default.
    default_auto_field: str = "django.db.models.BigAutoField"
