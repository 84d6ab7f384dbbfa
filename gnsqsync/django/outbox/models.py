"""The tables of the outbox: messages on their way to nsqd, and periodic messages."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.core.checks import CheckMessage
from django.db import models
from django.utils import timezone

from gnsqsync.django.databases import KeyField
from gnsqsync.django.moments import MomentField
from gnsqsync.envelope import MAX_KEY

__all__ = ["OutboxMessage", "PeriodicMessage"]


class OutboxMessage(models.Model):
    """A message that waits for its time or the relay, or that has failed for good."""

    alias: models.CharField[str, str] = KeyField(max_length=100, default="default")
    topic: models.CharField[str, str] = models.CharField(max_length=64)
    body: models.BinaryField[bytes, bytes] = models.BinaryField()
    # Headers and key are None in rows that an older version wrote.
    headers: models.JSONField[Any, Any] = models.JSONField(null=True)
    key: models.CharField[str | None, str | None] = KeyField(max_length=MAX_KEY, null=True)
    deliver_at: models.DateTimeField[datetime | None, datetime | None] = MomentField(
        null=True, help_text="Not published before."
    )
    created_at: models.DateTimeField[datetime, datetime] = MomentField(default=timezone.now)
    attempts: models.PositiveIntegerField[int, int] = models.PositiveIntegerField(
        default=0, help_text="Times that nsqd said no."
    )
    retry_at: models.DateTimeField[datetime, datetime] = MomentField(
        default=timezone.now, help_text="Not tried before."
    )
    failed_at: models.DateTimeField[datetime | None, datetime | None] = MomentField(
        null=True, help_text="Not tried any more since then."
    )
    last_error: models.TextField[str, str] = models.TextField(default="", blank=True)

    class Meta:
        verbose_name = "message"
        ordering: ClassVar[tuple[str, ...]] = ("pk",)
        indexes: ClassVar[tuple[models.Index, ...]] = (
            models.Index(
                fields=["retry_at", "id"],
                condition=models.Q(failed_at=None),
                name="gnsqsync_outbox_due",
            ),
            models.Index(fields=["key"], name="gnsqsync_outbox_key"),
        )

    @classmethod
    def check(cls, **kwargs: Any) -> list[CheckMessage]:
        """Return Django's findings, except that MariaDB ignores the condition of an index.

        The condition only makes the index smaller.
        """
        return [found for found in super().check(**kwargs) if found.id != "models.W037"]

    def __str__(self) -> str:
        return f"{self.topic} #{self.pk}"


class PeriodicMessage(models.Model):
    """A message that is published whenever a cron text says so."""

    name: models.CharField[str, str] = KeyField(max_length=100, unique=True)
    cron: models.CharField[str, str] = models.CharField(max_length=200)
    timezone: models.CharField[str, str] = models.CharField(max_length=64)
    missed: models.CharField[str, str] = models.CharField(
        max_length=4, help_text="What is published of the times at which no relay ran."
    )
    alias: models.CharField[str, str] = models.CharField(max_length=100)
    topic: models.CharField[str, str] = models.CharField(max_length=64)
    body: models.BinaryField[bytes, bytes] = models.BinaryField()
    headers: models.JSONField[Any, Any] = models.JSONField(null=True)
    # Due time of the last message; None before a relay of this version published one.
    last_at: models.DateTimeField[datetime | None, datetime | None] = MomentField(null=True)
    next_at: models.DateTimeField[datetime, datetime] = MomentField(db_index=True)

    class Meta:
        verbose_name = "periodic message"
        ordering: ClassVar[tuple[str, ...]] = ("name",)

    def __str__(self) -> str:
        return self.name
