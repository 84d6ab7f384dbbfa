"""Keys of the inbox that are compared by their bytes.

Only MariaDB and MySQL get another collation. Programs of the version before go on there. The same
index keeps both versions from handling a message twice.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

from gnsqsync.django.databases import KeyField
from gnsqsync.django.key_migrations import AlterToKeyField


class Migration(migrations.Migration):
    dependencies: ClassVar[list[tuple[str, str]]] = [("gnsqsync_inbox", "0001_initial")]

    operations: ClassVar[list[Operation]] = [
        AlterToKeyField("inboxmarker", "consumer", KeyField(max_length=129)),
        AlterToKeyField("inboxmarker", "key", KeyField(max_length=200)),
    ]
