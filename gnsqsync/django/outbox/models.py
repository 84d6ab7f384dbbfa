"""The table of the outbox. A row is there as long as its message is not known to be in nsqd."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.db import models
from django.utils import timezone

__all__ = ["OutboxMessage"]


class OutboxMessage(models.Model):
    """A message that waits for the relay, or that has failed for good."""

    alias: models.CharField[str, str] = models.CharField(max_length=100, default="default")
    topic: models.CharField[str, str] = models.CharField(max_length=64)
    body: models.BinaryField[bytes, bytes] = models.BinaryField()
    deliver_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(
        null=True, help_text="nsqd defers it until then."
    )
    created_at: models.DateTimeField[datetime, datetime] = models.DateTimeField(
        default=timezone.now
    )
    attempts: models.PositiveIntegerField[int, int] = models.PositiveIntegerField(
        default=0, help_text="Times that nsqd said no."
    )
    retry_at: models.DateTimeField[datetime, datetime] = models.DateTimeField(
        default=timezone.now, help_text="Not tried before."
    )
    failed_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(
        null=True, help_text="Not tried any more since then."
    )
    last_error: models.TextField[str, str] = models.TextField(default="", blank=True)

    class Meta:
        verbose_name = "message"
        ordering: ClassVar[tuple[str, ...]] = ("pk",)

    def __str__(self) -> str:
        return f"{self.topic} #{self.pk}"
