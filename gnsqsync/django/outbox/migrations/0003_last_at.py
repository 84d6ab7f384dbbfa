"""The latest due time of a periodic message that is in the outbox or was published.

Rows and programs from before go on: the new column may be NULL.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models
from django.db.migrations.operations.base import Operation


class Migration(migrations.Migration):
    dependencies: ClassVar[list[tuple[str, str]]] = [("gnsqsync_outbox", "0002_keys_and_schedule")]

    operations: ClassVar[list[Operation]] = [
        migrations.AddField("periodicmessage", "last_at", models.DateTimeField(null=True)),
    ]
