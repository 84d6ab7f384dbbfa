"""An operation of migrations that turns a field into a KeyField. Knows no table."""

from __future__ import annotations

from typing import Any

from django.db.migrations import AlterField

__all__ = ["AlterToKeyField"]


class AlterToKeyField(AlterField):
    """An AlterField for MariaDB and MySQL only: SQLite would copy the table without any change."""

    def database_forwards(
        self, app_label: Any, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        if schema_editor.connection.vendor == "mysql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
