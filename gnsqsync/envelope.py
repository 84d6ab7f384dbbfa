"""Headers in front of a body: the envelope of docs/protocol/envelope, as bytes in and bytes out."""

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

# No text begins so: 0xFF is no UTF-8, and U+FFFF, in either order of UTF-16, is no character.
# Then the version.
MAGIC = b"\xff\xffNH\x01"
MAX_HEADERS = 64
# Bytes of all headers together, with the zeros between them.
MAX_BLOCK = 65535
# Bytes.
MAX_NAME = 255
# The header that says which message this is: the same in each copy of it, however often it is
# published.
KEY = "key"
# Characters of a key: what a column of a database with an index takes everywhere.
MAX_KEY = 200

_HEAD = len(MAGIC) + 2


def new_key() -> str:
    """A key that no other message has: 32 hex digits."""
    return os.urandom(16).hex()


def check_key(key: object, name: str = "the header 'key'") -> str:
    """A key as it is; ConfigError, with ``name``, for what is none."""
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY or not key.isprintable():
        shown = repr(key)
        raise ConfigError(
            f"{name} is {shown[:80]}{'...' if len(shown) > 80 else ''}; it must be a str of 1 to"
            f" {MAX_KEY} printable characters"
        )
    return key


def encode(headers: Mapping[str, str], body: bytes) -> bytes:
    """The body in an envelope. Raises ConfigError as ``encode_head``."""
    return encode_head(headers) + body


def restore(headers: Mapping[str, str], body: bytes) -> bytes:
    """Return the envelope that ``decode`` has opened, byte for byte. It checks nothing.

    ``headers``: what ``parse`` returned for one block, which therefore fits.
    """
    block = "\0".join(text for pair in headers.items() for text in pair).encode()
    return MAGIC + len(block).to_bytes(2) + block + body


def encode_head(headers: Mapping[str, str]) -> bytes:
    """What stands in front of each body.

    Raises:
        ConfigError: A name or value is no str, is too long or has a zero in it, or there are too
            many.
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
    """The headers and the body; None where this is no envelope. Raises nothing."""
    parts = split(data)
    return None if parts is None else (parse(parts[0]), parts[1])


def opened(data: bytes) -> tuple[dict[str, str], bytes] | None:
    """Return the headers and the body, for tools that show or store what strangers publish.

    None for what is no envelope, and also, unlike ``decode``, for headers that break a rule: no
    byte of a body that only looks like an envelope is lost. ``restore`` gives the data back.
    """
    parts = split(data)
    if parts is None:
        return None
    headers = parse(parts[0])
    return (headers, parts[1]) if headers or not parts[0] else None


def split(data: bytes) -> tuple[bytes, bytes] | None:
    """The block of headers, not looked at, and the body; None where this is no envelope."""
    if not data.startswith(MAGIC):
        return None
    end = _HEAD + (data[_HEAD - 2] << 8 | data[_HEAD - 1]) if len(data) > _HEAD else len(data)
    # An envelope has a body: nsqd takes no empty message, and the body was one.
    return (data[_HEAD:end], data[end:]) if end < len(data) else None


def parse(block: bytes) -> dict[str, str]:
    """The headers of a block; none at all where it breaks a rule. Raises nothing."""
    if not block:
        return {}
    try:
        parts = block.decode().split("\0", 2 * MAX_HEADERS)
    except UnicodeDecodeError:
        return {}
    headers = dict(zip(parts[::2], parts[1::2], strict=False))
    # A name that stands there twice, has no value, or is empty.
    if 2 * len(headers) != len(parts) or "" in headers:
        return {}
    return headers
