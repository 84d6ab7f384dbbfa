"""Estimate of the memory that JSON takes once it is parsed, made before it is parsed.

Knows bytes and the sizes of Python's objects. ``[],`` has three bytes, and the list takes 64.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["MAX_MEMORY", "OBJECT", "TooLarge", "memory_of", "parse_json"]

# Upper bound in bytes of the memory of one answer: received bytes, text, and all objects.
MAX_MEMORY: int = 128 * 1024 * 1024
# Bytes of a JSON object: a small dict, and the dataclass that is made of it.
OBJECT: int = 500

# Bytes of an entry of a list or dict with a number in it, of a list, of a key with its place in two
# dicts, and of half of a text.
_ENTRY, _LIST, _KEY, _QUOTE = 40, 96, 64, 32
_BELOW_FOUR_BYTES = bytes(range(0xF0))


class TooLarge(ValueError):
    """The objects would take more memory than ``MAX_MEMORY``."""


def memory_of(content: bytes, per_object: int = OBJECT) -> int:
    """Return an upper bound, in bytes, of the memory that ``content`` and its objects take.

    ``per_object``: bytes for each JSON object, with what the caller makes of it. Marks within texts
    count, too: the sum is quick, and never too low.
    """
    wide = 1
    if not content.isascii():
        # A wide character makes each character of its text as wide.
        wide = 4 if content.translate(None, _BELOW_FOUR_BYTES) else 2
    escaped = 4 if b"\\ud" in content or b"\\uD" in content else 2 if b"\\u" in content else 1
    count = content.count
    return (
        len(content) * (1 + wide + max(wide, escaped))
        + _ENTRY * count(b",")
        + (_ENTRY + _LIST) * count(b"[")
        + (_ENTRY + per_object) * count(b"{")
        + _KEY * count(b":")
        + _QUOTE * count(b'"')
    )


def parse_json(
    content: bytes,
    *,
    per_object: int = OBJECT,
    loads: Callable[[bytes], Any] = json.loads,
) -> Any:
    """Return the value of ``content``. Raise TooLarge before it takes too much memory.

    Raise ValueError for a text that is not JSON, or has too many nested brackets.
    """
    if memory_of(content, per_object) > MAX_MEMORY:
        raise TooLarge(f"it would take more than {MAX_MEMORY >> 20} MiB of memory")
    try:
        return loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
