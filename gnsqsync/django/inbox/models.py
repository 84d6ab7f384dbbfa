"""The table of the inbox: a marker for each message that a consumer has handled."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.db import models

from gnsqsync.django.databases import KeyField
from gnsqsync.django.moments import MomentField
from gnsqsync.envelope import MAX_KEY

__all__ = ["InboxMarker"]


class InboxMarker(models.Model):
    """A marker, committed together with the handler's work. ``consumer``: topic/channel."""

    consumer: models.CharField[str, str] = KeyField(max_length=129)
    key: models.CharField[str, str] = KeyField(max_length=MAX_KEY)
    handled_at: models.DateTimeField[datetime, datetime] = MomentField(db_index=True)

    class Meta:
        verbose_name = "marker"
        ordering: ClassVar[tuple[str, ...]] = ("pk",)
        constraints: ClassVar[tuple[models.BaseConstraint, ...]] = (
            models.UniqueConstraint(fields=["consumer", "key"], name="gnsqsync_inbox_once"),
        )

    def __str__(self) -> str:
        return f"{self.consumer} {self.key}"
