"""Small JSON files of the log with a checksum inside.

Knows bytes and dictionaries only. The checksum is a field of the object, so that older versions of
this package read the files, too.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

__all__ = ["BadRecord", "open_record", "record"]

_FIELD = "crc32"


class BadRecord(Exception):
    """The bytes are no record, or were changed."""


def record(fields: Mapping[str, Any]) -> bytes:
    """Return the fields as bytes of a file."""
    return json.dumps({**fields, _FIELD: _checksum(fields)}, sort_keys=True).encode()


def open_record(data: bytes) -> dict[str, Any]:
    """Return the fields of ``record``. Raises BadRecord with the reason.

    Records of older versions have no checksum.
    """
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise BadRecord(f"it is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadRecord("it is no JSON object")
    checksum = fields.pop(_FIELD, None)
    if checksum is not None and checksum != _checksum(fields):
        raise BadRecord("its bytes are not those that were written: the checksum differs")
    return fields


def _checksum(fields: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(fields, sort_keys=True).encode()):08x}"
