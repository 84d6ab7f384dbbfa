"""The table of the inbox: a marker for each message that a consumer has handled."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.db import models

from gnsqsync.django.databases import KeyField
from gnsqsync.envelope import MAX_KEY

__all__ = ["InboxMarker"]


class InboxMarker(models.Model):
    """Committed together with what the handler did. ``consumer``: topic/channel."""

    consumer: models.CharField[str, str] = KeyField(max_length=129)
    key: models.CharField[str, str] = KeyField(max_length=MAX_KEY)
    handled_at: models.DateTimeField[datetime, datetime] = models.DateTimeField(db_index=True)

    class Meta:
        verbose_name = "marker"
        ordering: ClassVar[tuple[str, ...]] = ("pk",)
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            models.UniqueConstraint(fields=["consumer", "key"], name="gnsqsync_inbox_once"),
        )

    def __str__(self) -> str:
        return f"{self.consumer} {self.key}"
