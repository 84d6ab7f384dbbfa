"""Collations of MariaDB and MySQL under which two texts are equal only if their bytes are.

The usual collations there take "A" for "a", and ignore accents and blanks at the end. SQLite and
PostgreSQL compare bytes by default. Knows names and SQL; knows no driver.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from gnsqsync.errors import ConfigError

__all__ = ["EXACT", "FIND", "check_exact", "exact_collation", "is_duplicate"]

# The collations of MariaDB 10.2 and of MySQL 8.0.17. utf8mb4_bin ignores blanks at the end.
EXACT = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin")
# A query whose answer exact_collation() takes.
FIND = f"SHOW COLLATION WHERE `Collation` IN {EXACT!r}"


# ER_DUP_ENTRY of both servers, the first argument of the driver's IntegrityError.
_DUPLICATE = 1062


def is_duplicate(error: BaseException) -> bool:
    """Return True if the server refused a row because a unique index has its values."""
    return error.args[:1] == (_DUPLICATE,)


def exact_collation(found: Iterable[Sequence[Any]]) -> str:
    """Return the server's collation from its answer to FIND. ConfigError if it has none."""
    names = {str(row[0]) for row in found}
    for name in EXACT:
        if name in names:
            return name
    raise ConfigError(
        f"the database has neither of the collations {' and '.join(EXACT)}, which compare keys by"
        " their bytes; they need MariaDB 10.2 or MySQL 8.0.17"
    )


def check_exact(
    columns: Iterable[Sequence[Any]], compared: Collection[str | None], table: str, cure: str
) -> None:
    """Raise ConfigError if one of the columns ``compared`` has another collation.

    Args:
        columns: The answer to SHOW FULL COLUMNS of the table.
        compared: Names of columns.
        table: The name of the table, for the error.
        cure: The end of the error's text.
    """
    for name, _, collation, *_ in columns:
        if name in compared and collation is not None and collation not in EXACT:
            raise ConfigError(
                f"the column {name} of {table} has the collation {collation}, under which different"
                f" keys are equal; {cure}"
            )
