"""Keys of the inbox that are compared by their bytes.

Only MariaDB and MySQL get another collation. There, programs of the version before go on, and the
same index keeps them and this version from handling a message twice.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

from gnsqsync.django.databases import KeyField


class Migration(migrations.Migration):
    dependencies: ClassVar[list[tuple[str, str]]] = [("gnsqsync_inbox", "0001_initial")]

    operations: ClassVar[list[Operation]] = [
        migrations.AlterField("inboxmarker", "consumer", KeyField(max_length=129)),
        migrations.AlterField("inboxmarker", "key", KeyField(max_length=200)),
    ]
