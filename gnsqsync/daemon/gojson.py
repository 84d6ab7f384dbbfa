"""A parser of flat JSON objects by the rules of Go's json.Unmarshal. Knows no message."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["read_first_object", "read_object"]


class _Object(list[tuple[str, Any]]):
    """The pairs of a JSON object. Go reads each of them, and null keeps an earlier value."""


def read_object(body: bytes, fields: Mapping[str, type]) -> dict[str, Any]:
    """Return the values of ``fields``. A missing or null str, bool or int is "", False or 0.

    Keys may be in any case, and other keys are ignored. ValueError if ``body`` is no object, or if
    a value has a wrong type.
    """
    try:
        found = json.loads(
            body.decode("utf-8", "replace"), parse_constant=_refuse, object_pairs_hook=_Object
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return _values(found, fields)


def read_first_object(body: bytes, fields: Mapping[str, type]) -> dict[str, Any]:
    """Read the first value as Go's json.Decoder does, and ignore the bytes after it.

    ValueError with Go's text.
    """
    text = body.decode("utf-8", "replace").lstrip(" \t\r\n")
    if not text:
        raise ValueError("EOF")
    try:
        found, _ = _DECODER.raw_decode(text)
    except json.JSONDecodeError as error:
        if error.pos >= len(text):
            raise ValueError("unexpected EOF") from None
        what = f"invalid character {text[error.pos]!r} looking for beginning of value"
        raise ValueError(what) from None
    except RecursionError:
        raise ValueError("exceeded max depth") from None
    return _values(found, fields)


def _values(found: Any, fields: Mapping[str, type]) -> dict[str, Any]:
    values: dict[str, Any] = {name: kind() for name, kind in fields.items()}
    if found is None:
        return values
    if not isinstance(found, _Object):
        raise ValueError(f"json: cannot unmarshal {_kind(found)} into Go value of type struct")
    for key, value in found:
        name = key.casefold()
        kind = fields.get(name)
        if kind is not None and value is not None:
            # isinstance would take a bool for an int, so the type is compared.
            if type(value) is not kind or (type(value) is int and not -(2**63) <= value < 2**63):
                raise ValueError(
                    f"json: cannot unmarshal {_kind(value)} into Go struct field .{name} of type"
                    f" {_GO_TYPES[kind]}"
                )
            # Go replaces half a pair of surrogates by U+FFFD.
            values[name] = _LONE.sub("\ufffd", value) if isinstance(value, str) else value
    return values


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    if isinstance(value, (int, float)):
        return "number"
    return "object" if isinstance(value, _Object) else "array"


def _refuse(name: str) -> Any:
    raise ValueError(name)


_LONE = re.compile("[\ud800-\udfff]")
_DECODER = json.JSONDecoder(object_pairs_hook=_Object, parse_constant=_refuse)
_GO_TYPES = {str: "string", bool: "bool", int: "int"}
