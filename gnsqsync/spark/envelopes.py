"""The envelope of a body (docs/protocol/envelope) as expressions of Spark SQL: headers and body.

Knows Spark's functions, and the format by ``gnsqsync.envelope``. Runs in the JVM, without Python
workers.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from gnsqsync.envelope import MAGIC, MAX_HEADERS

__all__ = ["body", "headers"]

_HEAD = len(MAGIC) + 2


def headers(column: Column | str = "value") -> Column:
    """Return the headers of bodies in an envelope, as a MAP<STRING, STRING>.

    The map is empty if there is no envelope, or if the headers break a rule (as in
    ``Message.headers``).

    Args:
        column: The BINARY column that the source calls ``value``, or its name.

    Returns:
        The expression.
    """
    value = _column(column)
    block = F.substring(value, F.lit(_HEAD + 1), _block_length(value))
    # NULL for bytes that are no UTF-8.
    text = F.try_validate_utf8(block.cast("string"))
    # An array of one element: Spark then splits the text once, and _parse uses it several times.
    parsed = F.get(F.transform(F.array(F.split(text, "\0")), _parse), F.lit(0))
    nothing = F.create_map().cast("map<string,string>")
    return F.when(_is_envelope(value), F.coalesce(parsed, nothing)).otherwise(nothing)


def body(column: Column | str = "value") -> Column:
    """Return the body without its envelope, as BINARY. A body without an envelope is unchanged.

    Args:
        column: The BINARY column that the source calls ``value``, or its name.

    Returns:
        The expression.
    """
    value = _column(column)
    first = _block_length(value) + (_HEAD + 1)
    return F.when(_is_envelope(value), F.substring(value, first, F.length(value))).otherwise(value)


def _column(column: Column | str) -> Column:
    return F.col(column) if isinstance(column, str) else column


def _block_length(value: Column) -> Column:
    number = F.substring(value, F.lit(len(MAGIC) + 1), F.lit(2))
    return F.conv(F.hex(number), 16, 10).cast("int")


def _is_envelope(value: Column) -> Column:
    # An envelope without a body behind its headers is no envelope.
    return F.startswith(value, F.lit(MAGIC)) & (F.length(value) > _block_length(value) + _HEAD)


def _parse(parts: Column) -> Column:
    """Return the map of an array name, value, name, value ...; NULL if the array breaks a rule."""
    names = F.filter(parts, lambda _, place: place % 2 == 0)
    values = F.filter(parts, lambda _, place: place % 2 == 1)
    good = (
        (F.size(parts) <= 2 * MAX_HEADERS)
        & (F.size(names) == F.size(values))
        & (F.size(F.array_distinct(names)) == F.size(names))
        & ~F.array_contains(names, "")
    )
    return F.when(good, F.map_from_arrays(names, values))
