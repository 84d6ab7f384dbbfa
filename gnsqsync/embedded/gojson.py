"""A flat JSON object as Go's json.Unmarshal reads it into a struct. Knows no message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["read_object"]


class _Object(list[tuple[str, Any]]):
    """A JSON object with every pair: Go looks at each, and null leaves what came before it."""


def read_object(body: bytes, fields: Mapping[str, type]) -> dict[str, Any]:
    """The values of ``fields``: str, bool or int; what is missing or null is "", False or 0.

    Keys in any case; other keys do not matter. ValueError when it is no object, or a value is not
    of its type.
    """
    values: dict[str, Any] = {name: kind() for name, kind in fields.items()}
    try:
        found = json.loads(
            body.decode("utf-8", "replace"), parse_constant=_refuse, object_pairs_hook=_Object
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if found is None:
        return values
    if not isinstance(found, _Object):
        raise ValueError("not an object")
    for key, value in found:
        name = key.casefold()
        kind = fields.get(name)
        if kind is not None and value is not None:
            # bool is an int to isinstance; a float is one to neither.
            if type(value) is not kind or (type(value) is int and not -(2**63) <= value < 2**63):
                raise ValueError(f"{name} has a wrong type")
            values[name] = value
    return values


def _refuse(name: str) -> Any:
    raise ValueError(name)
