"""The rules of topic and channel names, and Go's quoting of names in error texts.

The rules are in docs/protocol/limits#names, and %q in docs/protocol/index#notation. Knows no topic.
"""

from __future__ import annotations

import re

__all__ = ["go_quote", "is_ephemeral", "valid_name"]

_NAME = re.compile(rb"[.a-zA-Z0-9_-]+(#ephemeral)?")
_SHORT_ESCAPES = {
    0x07: "\\a",
    0x08: "\\b",
    0x09: "\\t",
    0x0A: "\\n",
    0x0B: "\\v",
    0x0C: "\\f",
    0x0D: "\\r",
    0x22: '\\"',
    0x5C: "\\\\",
}


def valid_name(name: bytes) -> bool:
    """Return True for a valid name of a topic or channel: 1 to 64 bytes
    (docs/protocol/limits#names)."""
    # fullmatch, because $ would accept a trailing newline.
    return 1 <= len(name) <= 64 and _NAME.fullmatch(name) is not None


def is_ephemeral(name: str) -> bool:
    """Return True if the topic or channel is in memory only and vanishes with its last user."""
    return name.endswith("#ephemeral")


def go_quote(data: bytes) -> bytes:
    """Return ``data`` in the form of Go's %q: in double quotes, bad UTF-8 as \\xff."""
    parts = ['"']
    # surrogateescape turns each bad byte into one code point U+DC80..U+DCFF.
    for char in data.decode("utf-8", "surrogateescape"):
        code = ord(char)
        if code in _SHORT_ESCAPES:
            parts.append(_SHORT_ESCAPES[code])
        elif 0xDC80 <= code <= 0xDCFF:
            parts.append(f"\\x{code - 0xDC00:02x}")
        elif char.isprintable():
            parts.append(char)
        elif code < 0x20 or code == 0x7F:
            parts.append(f"\\x{code:02x}")
        elif code < 0x10000:
            parts.append(f"\\u{code:04x}")
        else:
            parts.append(f"\\U{code:08x}")
    parts.append('"')
    return "".join(parts).encode()
