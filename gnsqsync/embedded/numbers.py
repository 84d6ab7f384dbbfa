"""Parsers of numbers in lines and bodies, with Go's wrap-around. Knows no command."""

from __future__ import annotations

import re

__all__ = ["INTEGER", "parse_base10", "parse_int64", "signed64", "signed_int"]

INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
"""A decimal integer by the syntax of Go's strconv, in range or not."""


def signed_int(data: bytes, offset: int) -> int:
    """Return the big-endian int32 at ``offset``."""
    return int.from_bytes(data[offset : offset + 4], "big", signed=True)


def parse_base10(digits: bytes) -> int | None:
    """Parse digits as nsqd does: empty is 0, and numbers wrap at 2**64. None if no digits."""
    if not digits:
        return 0
    if not digits.isdigit():
        return None
    value = 0
    # Python refuses to convert very long numbers at once.
    for start in range(0, len(digits), 1000):
        piece = digits[start : start + 1000]
        value = (value * 10 ** len(piece) + int(piece)) % 2**64
    return value


def parse_int64(text: str) -> int | None:
    """Parse as Go's strconv.ParseInt does in base 10. None if no integer or out of range."""
    # Python refuses to convert very long numbers.
    if len(text) > 4000 or not INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if signed64(value) == value else None


def signed64(value: int) -> int:
    """Return ``value`` wrapped to an int64."""
    value %= 2**64
    return value - 2**64 if value >= 2**63 else value
