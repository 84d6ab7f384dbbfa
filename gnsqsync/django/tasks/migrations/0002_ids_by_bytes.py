"""Ids of results that are compared by their bytes.

Only MariaDB and MySQL get another collation. Programs of the version before go on with
the table.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

from gnsqsync.django.databases import KeyField


class Migration(migrations.Migration):
    dependencies: ClassVar[list[tuple[str, str]]] = [("gnsqsync_tasks", "0001_initial")]

    operations: ClassVar[list[Operation]] = [
        migrations.AlterField(
            "storedresult", "id", KeyField(max_length=64, primary_key=True, serialize=False)
        ),
        migrations.AlterField("storedresult", "backend", KeyField(max_length=100)),
    ]
