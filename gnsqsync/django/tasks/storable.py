"""Checks that a message and every database can hold a value.

Knows JSON and the limits of databases; knows no task and no table.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from django.utils.json import normalize_json

__all__ = ["MAX_ID", "MAX_NAME", "MAX_PATH", "as_json", "check_text"]

# Largest number of characters of a result's id.
MAX_ID = 64
# Largest number of characters of the name of a backend or a queue.
MAX_NAME = 100
# Largest number of characters of a task's path. The column has no limit of its own.
MAX_PATH = 500
# Largest number of nested lists and dicts. MySQL refuses JSON with more.
MAX_DEPTH = 100
# Largest number of bits of an integer. Python does not convert integers of more than 4,300 digits.
MAX_BITS = 14_280


def as_json(value: object, name: str) -> Any:
    """Return the value in types of JSON.

    ``name``: name of the value in an error.

    Raises:
        TypeError: The value has a part of a type that JSON does not have.
        ValueError: The value has a part that JSON or a database cannot hold.
    """
    try:
        found = normalize_json(value)
    except RecursionError as error:
        raise ValueError(f"{name} nests too deeply, or contains itself") from error
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}; JSON cannot hold it") from error
    _check(found, name, MAX_DEPTH)
    return found


def _check(value: object, name: str, levels: int) -> None:
    if isinstance(value, str):
        check_text(value, name)
    elif isinstance(value, float):
        if not isfinite(value):
            raise ValueError(f"{name} has {value!r}, which is no number of JSON")
    elif isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise ValueError(f"{name} has an integer of more than 4,300 digits; give it as text")
    elif isinstance(value, (dict, list)):
        if not levels:
            raise ValueError(f"{name} nests more than {MAX_DEPTH} levels; MySQL stores no more")
        for key in value if isinstance(value, dict) else ():
            if key is not None and not isinstance(key, (str, int, float)):
                raise TypeError(f"{name} has the key {key!r}; JSON has texts as keys")
            _check(key, name, levels)
        for one in value.values() if isinstance(value, dict) else value:
            _check(one, name, levels - 1)


def check_text(text: str, name: str) -> None:
    """Raise ValueError for a text that PostgreSQL or UTF-8 cannot hold."""
    if "\0" in text:
        raise ValueError(f"{name} has a NUL character, which PostgreSQL cannot store; remove it")
    if not text.isascii():
        try:
            str.encode(text, "utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{name} has half of a surrogate pair, {text[error.start]!r}, which UTF-8 does not"
                " have; decode file names with errors='replace'"
            ) from error
