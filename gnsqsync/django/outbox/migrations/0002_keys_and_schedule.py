"""Keys and headers of messages, and periodic messages.

Rows and programs from before go on: the new columns may be NULL.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    dependencies: ClassVar[list[tuple[str, str]]] = [("gnsqsync_outbox", "0001_initial")]

    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="PeriodicMessage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=100, unique=True)),
                ("cron", models.CharField(max_length=200)),
                ("timezone", models.CharField(max_length=64)),
                (
                    "missed",
                    models.CharField(
                        help_text="What is published of the times at which no relay ran.",
                        max_length=4,
                    ),
                ),
                ("alias", models.CharField(max_length=100)),
                ("topic", models.CharField(max_length=64)),
                ("body", models.BinaryField()),
                ("headers", models.JSONField(null=True)),
                ("next_at", models.DateTimeField(db_index=True)),
            ],
            options={"verbose_name": "periodic message", "ordering": ("name",)},
        ),
        migrations.AddField("outboxmessage", "headers", models.JSONField(null=True)),
        migrations.AddField("outboxmessage", "key", models.CharField(max_length=200, null=True)),
        migrations.AlterField(
            "outboxmessage",
            "deliver_at",
            models.DateTimeField(help_text="Not published before.", null=True),
        ),
        migrations.AddIndex(
            "outboxmessage",
            models.Index(
                fields=["retry_at", "id"],
                condition=models.Q(("failed_at", None)),
                name="gnsqsync_outbox_due",
            ),
        ),
        migrations.AddIndex(
            "outboxmessage", models.Index(fields=["key"], name="gnsqsync_outbox_key")
        ),
    ]
