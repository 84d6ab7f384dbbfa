"""The table of the results: a row for each task that was enqueued."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import models

from gnsqsync.django.databases import KeyField

__all__ = ["StoredResult"]


class StoredResult(models.Model):
    """The result of a task, with the fields of django.tasks.TaskResult."""

    id: models.CharField[str, str] = KeyField(max_length=64, primary_key=True)
    backend: models.CharField[str, str] = KeyField(max_length=100)
    # Path of the task's function.
    task: models.TextField[str, str] = models.TextField()
    queue_name: models.CharField[str, str] = models.CharField(max_length=100)
    run_after: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(
        null=True
    )
    args: models.JSONField[Any, Any] = models.JSONField()
    kwargs: models.JSONField[Any, Any] = models.JSONField()
    status: models.CharField[str, str] = models.CharField(max_length=10)
    enqueued_at: models.DateTimeField[datetime, datetime] = models.DateTimeField(db_index=True)
    started_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(
        null=True
    )
    last_attempted_at: models.DateTimeField[datetime | None, datetime | None] = (
        models.DateTimeField(null=True)
    )
    finished_at: models.DateTimeField[datetime | None, datetime | None] = models.DateTimeField(
        null=True, db_index=True
    )
    return_value: models.JSONField[Any, Any] = models.JSONField(null=True)
    # A list of errors, each with the path of the exception's class and the traceback.
    errors: models.JSONField[Any, Any] = models.JSONField(default=list)
    worker_ids: models.JSONField[Any, Any] = models.JSONField(default=list)

    class Meta:
        verbose_name = "task result"

    def __str__(self) -> str:
        return f"{self.task} {self.id}"
