"""Numbers as nsqd reads them from lines and bodies, with Go's wrap-around. Knows no command."""

from __future__ import annotations

import re

__all__ = ["INTEGER", "parse_base10", "parse_int64", "signed64", "signed_int"]

INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
"""What Go's strconv takes for a decimal integer, in range or not."""


def signed_int(data: bytes, offset: int) -> int:
    """The int32 at ``offset``, big-endian."""
    return int.from_bytes(data[offset : offset + 4], "big", signed=True)


def parse_base10(digits: bytes) -> int | None:
    """nsqd's own number parser: digits only, nothing is 0, wraps at 2**64. None when refused."""
    if not digits:
        return 0
    if not digits.isdigit():
        return None
    value = 0
    # In pieces, because Python refuses to convert very long numbers.
    for start in range(0, len(digits), 1000):
        piece = digits[start : start + 1000]
        value = (value * 10 ** len(piece) + int(piece)) % 2**64
    return value


def parse_int64(text: str) -> int | None:
    """Go's strconv.ParseInt to base 10: None when it is no integer or out of range."""
    # The bound on the length keeps away from numbers that Python refuses to convert.
    if len(text) > 4000 or not INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if signed64(value) == value else None


def signed64(value: int) -> int:
    """``value`` wrapped to an int64."""
    value %= 2**64
    return value - 2**64 if value >= 2**63 else value
