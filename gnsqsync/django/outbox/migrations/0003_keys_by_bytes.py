"""Keys and names of the outbox that are compared by their bytes.

Only MariaDB and MySQL get another collation. Programs of the version before go on with
the table.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models, router
from django.db.migrations.operations.base import Operation

from gnsqsync.django.databases import KeyField

DUE_INDEX = "gnsqsync_outbox_waiting"


def add_due_index(apps: Any, schema_editor: Any) -> None:
    """Add what stands for the index with a condition, which MariaDB and MySQL leave out.

    Without an index a relay would lock all rows that are due, and other relays find none.
    """
    model = apps.get_model("gnsqsync_outbox", "OutboxMessage")
    connection = schema_editor.connection
    if connection.vendor == "mysql" and router.allow_migrate_model(connection.alias, model):
        fields = ["failed_at", "retry_at", "id"]
        schema_editor.add_index(model, models.Index(fields=fields, name=DUE_INDEX))


def remove_due_index(apps: Any, schema_editor: Any) -> None:
    model = apps.get_model("gnsqsync_outbox", "OutboxMessage")
    connection = schema_editor.connection
    if connection.vendor == "mysql" and router.allow_migrate_model(connection.alias, model):
        schema_editor.remove_index(model, models.Index(fields=["failed_at"], name=DUE_INDEX))


class Migration(migrations.Migration):
    dependencies: ClassVar[list[tuple[str, str]]] = [("gnsqsync_outbox", "0002_keys_and_schedule")]

    operations: ClassVar[list[Operation]] = [
        migrations.AlterField(
            "outboxmessage", "alias", KeyField(default="default", max_length=100)
        ),
        migrations.AlterField("outboxmessage", "key", KeyField(max_length=200, null=True)),
        migrations.RunPython(add_due_index, remove_due_index, atomic=False),
        migrations.AlterField("periodicmessage", "name", KeyField(max_length=100, unique=True)),
    ]
