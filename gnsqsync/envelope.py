"""Envelope of headers in front of a body (docs/protocol/envelope), as bytes in and bytes out."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gnsqsync.errors import ConfigError

__all__ = [
    "KEY",
    "MAGIC",
    "MAX_BLOCK",
    "MAX_HEADERS",
    "MAX_KEY",
    "MAX_NAME",
    "check_key",
    "decode",
    "encode",
    "encode_head",
    "new_key",
    "opened",
    "parse",
    "restore",
    "split",
]

# Start of an envelope, then its version. No text starts like this: 0xFF is not UTF-8, and U+FFFF,
# in either order of UTF-16, is not a character.
MAGIC = b"\xff\xffNH\x01"
# Upper bound of headers in an envelope.
MAX_HEADERS = 64
# Upper bound in bytes of all headers together, with the zeros between them.
MAX_BLOCK = 65535
# Upper bound in bytes of a header's name.
MAX_NAME = 255
# Name of the header that identifies a message. Its value is the same in each copy of the message,
# however often that is published.
KEY = "key"
# Upper bound of characters of a key: any database can index a column of this size.
MAX_KEY = 200

_HEAD = len(MAGIC) + 2


def new_key() -> str:
    """Return a key that no other message has: 32 hex digits."""
    return os.urandom(16).hex()


def check_key(key: object, name: str = "the header 'key'") -> str:
    """Return a valid key as it is. ConfigError, with ``name``, for an invalid one."""
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY or not key.isprintable():
        shown = repr(key)
        raise ConfigError(
            f"{name} is {shown[:80]}{'...' if len(shown) > 80 else ''}; it must be a str of 1 to"
            f" {MAX_KEY} printable characters"
        )
    return key


def encode(headers: Mapping[str, str], body: bytes) -> bytes:
    """Return the body in an envelope. Raises ConfigError as ``encode_head``."""
    return encode_head(headers) + body


def restore(headers: Mapping[str, str], body: bytes) -> bytes:
    """Return the envelope that ``decode`` has opened, byte for byte. It checks nothing.

    ``headers``: a result of ``parse`` for one block, which therefore fits.
    """
    block = "\0".join(text for pair in headers.items() for text in pair).encode()
    return MAGIC + len(block).to_bytes(2) + block + body


def encode_head(headers: Mapping[str, str]) -> bytes:
    """Return the head, which stands in front of each body.

    Raises:
        ConfigError: A name or value is not a str, is too long or has a zero in it; or there are too
            many headers.
    """
    if len(headers) > MAX_HEADERS:
        with_key = ", the key among them" if KEY in headers else ""
        raise ConfigError(f"{len(headers)} headers{with_key}; an envelope holds {MAX_HEADERS}")
    parts: list[bytes] = []
    for name, value in headers.items():
        encoded = _encoded(name, "a header's name")
        if not 0 < len(encoded) <= MAX_NAME or not name.isprintable():
            raise ConfigError(
                f"the header's name {name[:80]!r} must be 1 to {MAX_NAME} bytes of UTF-8, all"
                " characters printable"
            )
        parts += encoded, _encoded(value, f"header {name!r}")
    block = b"\0".join(parts)
    if len(block) > MAX_BLOCK:
        raise ConfigError(
            f"the headers have {len(block)} bytes with the zeros between them; at most {MAX_BLOCK}"
        )
    return MAGIC + len(block).to_bytes(2) + block


def _encoded(text: object, what: str) -> bytes:
    if not isinstance(text, str):
        raise ConfigError(f"{what} is {text!r}; it must be a str")
    if "\0" in text:
        raise ConfigError(f"{what} is {text[:80]!r}; it must not have a zero character")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} is {text[:80]!r}: {error}") from error


def decode(data: bytes) -> tuple[dict[str, str], bytes] | None:
    """Return the headers and the body, or None if this is no envelope. Raises nothing."""
    parts = split(data)
    return None if parts is None else (parse(parts[0]), parts[1])


def opened(data: bytes) -> tuple[dict[str, str], bytes] | None:
    """Return the headers and the body, for tools that show or store messages of strangers.

    Return None if this is no envelope, and, unlike ``decode``, if the headers break a rule. So no
    byte of a body that only looks like an envelope is lost. ``restore`` gives the data back.
    """
    parts = split(data)
    if parts is None:
        return None
    headers = parse(parts[0])
    return (headers, parts[1]) if headers or not parts[0] else None


def split(data: bytes) -> tuple[bytes, bytes] | None:
    """Return the block of headers, unchecked, and the body; or None if this is no envelope."""
    if not data.startswith(MAGIC):
        return None
    end = _HEAD + (data[_HEAD - 2] << 8 | data[_HEAD - 1]) if len(data) > _HEAD else len(data)
    # An envelope always has a body, because nsqd takes no empty message.
    return (data[_HEAD:end], data[end:]) if end < len(data) else None


def parse(block: bytes) -> dict[str, str]:
    """Return the headers of a block, or none if it breaks a rule. Raises nothing."""
    if not block:
        return {}
    try:
        parts = block.decode().split("\0", 2 * MAX_HEADERS)
    except UnicodeDecodeError:
        return {}
    headers = dict(zip(parts[::2], parts[1::2], strict=False))
    # A name occurs twice, has no value, or is empty.
    if 2 * len(headers) != len(parts) or "" in headers:
        return {}
    return headers
