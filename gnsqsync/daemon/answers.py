"""Reading an HTTP answer of a server that is not NSQ's, in bounded memory and time.

Knows parts of a body and a deadline; knows neither requests nor what the answer means.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

__all__ = ["PART", "read_whole"]

# Bytes that are read at a time.
PART = 65536


def read_whole(parts: Iterable[bytes], most: int, deadline: float, error: type[Exception]) -> bytes:
    """Return all parts as one body.

    Args:
        parts: The body, in pieces of ``PART`` bytes.
        most: Upper bound of its bytes.
        deadline: The end of the wait, in seconds of ``time.monotonic()``.
        error: The class of the error for a body that is larger or does not end in time.
    """
    content = bytearray()
    for part in parts:
        content += part
        if len(content) > most:
            raise error(f"the answer is larger than {most} bytes")
        if time.monotonic() > deadline:
            raise error("the answer does not end")
    return bytes(content)
