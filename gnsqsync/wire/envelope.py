"""Headers in front of a body: the envelope of docs/protocol/envelope, as bytes in and bytes out."""

from __future__ import annotations

from collections.abc import Mapping

from gnsqsync.errors import ConfigError

__all__ = ["MAGIC", "MAX_BLOCK", "MAX_HEADERS", "decode", "encode", "encode_head"]

# No text begins so: 0xFF is no UTF-8, and U+FFFF, in either order of UTF-16, is no character.
# Then the version.
MAGIC = b"\xff\xffNH\x01"
MAX_HEADERS = 64
# Bytes of all headers together, with their lengths.
MAX_BLOCK = 65535

_MOST_NAME = 255
_HEAD = len(MAGIC) + 2


def encode(headers: Mapping[str, str], body: bytes) -> bytes:
    """The body in an envelope. Raises ConfigError as ``encode_head``."""
    return encode_head(headers) + body


def encode_head(headers: Mapping[str, str]) -> bytes:
    """What stands in front of each body.

    Raises:
        ConfigError: A name or value is no str or is too long, or there are too many.
    """
    if len(headers) > MAX_HEADERS:
        raise ConfigError(f"{len(headers)} headers; an envelope holds {MAX_HEADERS}")
    parts: list[bytes] = []
    for name, value in headers.items():
        encoded = _encoded(name, "a header's name")
        if not 0 < len(encoded) <= _MOST_NAME or not name.isprintable():
            raise ConfigError(
                f"the header's name {name[:80]!r} must be 1 to {_MOST_NAME} bytes of UTF-8 without"
                " control characters"
            )
        text = _encoded(value, f"header {name!r}")
        if len(text) > MAX_BLOCK:
            raise ConfigError(f"header {name!r} has {len(text)} bytes; at most {MAX_BLOCK}")
        parts += len(encoded).to_bytes(1), encoded, len(text).to_bytes(2), text
    block = b"".join(parts)
    if len(block) > MAX_BLOCK:
        raise ConfigError(
            f"the headers have {len(block)} bytes with their lengths; at most {MAX_BLOCK}"
        )
    return MAGIC + len(block).to_bytes(2) + block


def _encoded(text: object, what: str) -> bytes:
    if not isinstance(text, str):
        raise ConfigError(f"{what} is {text!r}; it must be a str")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{what} is {text[:80]!r}, which is not valid Unicode: {error}"
        ) from error


def decode(data: bytes) -> tuple[dict[str, str], bytes] | None:
    """The headers and the body; None where this is no envelope. Raises nothing."""
    if not data.startswith(MAGIC):
        return None
    end = _HEAD + int.from_bytes(data[len(MAGIC) : _HEAD])
    # An envelope has a body: nsqd takes no empty message, and it was one before.
    if end >= len(data):
        return None
    headers: dict[str, str] = {}
    at = _HEAD
    try:
        while at < end:
            name_end = at + 1 + data[at]
            value_at = name_end + 2
            value_end = value_at + (data[name_end] << 8 | data[name_end + 1])
            headers[data[at + 1 : name_end].decode()] = data[value_at:value_end].decode()
            at = value_end
            if len(headers) > MAX_HEADERS:
                return None
    except (IndexError, UnicodeDecodeError):
        return None
    return (headers, data[end:]) if at == end else None
