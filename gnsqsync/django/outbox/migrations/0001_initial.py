"""The table of the outbox."""

from __future__ import annotations

from typing import ClassVar

import django.utils.timezone
from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    initial: ClassVar[bool] = True

    dependencies: ClassVar[list[tuple[str, str]]] = []

    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="OutboxMessage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("alias", models.CharField(default="default", max_length=100)),
                ("topic", models.CharField(max_length=64)),
                ("body", models.BinaryField()),
                (
                    "deliver_at",
                    models.DateTimeField(help_text="nsqd defers it until then.", null=True),
                ),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "attempts",
                    models.PositiveIntegerField(default=0, help_text="Times that nsqd said no."),
                ),
                (
                    "retry_at",
                    models.DateTimeField(
                        default=django.utils.timezone.now, help_text="Not tried before."
                    ),
                ),
                (
                    "failed_at",
                    models.DateTimeField(help_text="Not tried any more since then.", null=True),
                ),
                ("last_error", models.TextField(blank=True, default="")),
            ],
            options={"verbose_name": "message", "ordering": ("pk",)},
        ),
    ]
