"""Keys and names of the outbox that are compared by their bytes.

Only MariaDB and MySQL get another collation. Programs of the version before go on with the table.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

from gnsqsync.django.databases import KeyField
from gnsqsync.django.key_migrations import AlterToKeyField


class Migration(migrations.Migration):
    dependencies: ClassVar[list[tuple[str, str]]] = [("gnsqsync_outbox", "0003_last_at")]

    operations: ClassVar[list[Operation]] = [
        AlterToKeyField("outboxmessage", "alias", KeyField(default="default", max_length=100)),
        AlterToKeyField("outboxmessage", "key", KeyField(max_length=200, null=True)),
        AlterToKeyField("periodicmessage", "name", KeyField(max_length=100, unique=True)),
    ]
