"""The table of the inbox."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    initial: ClassVar[bool] = True

    dependencies: ClassVar[list[tuple[str, str]]] = []

    operations: ClassVar[list[Operation]] = [
        migrations.CreateModel(
            name="InboxMarker",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("consumer", models.CharField(max_length=129)),
                ("key", models.CharField(max_length=200)),
                ("handled_at", models.DateTimeField(db_index=True)),
            ],
            options={"verbose_name": "marker", "ordering": ("pk",)},
        ),
        migrations.AddConstraint(
            "inboxmarker",
            models.UniqueConstraint(fields=("consumer", "key"), name="gnsqsync_inbox_once"),
        ),
    ]
