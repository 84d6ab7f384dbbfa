"""One Writer per entry of the settings and process, and the ways to publish with it.

Knows no handler. A Writer is fork safe by itself; dict.setdefault is atomic, so there is no lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction

from gnsqsync import Writer
from gnsqsync.django.config import DEFAULT, aliases, get_alias
from gnsqsync.writer.memory import MemoryWriter

__all__ = [
    "all_writers",
    "close_writers",
    "forget_writers",
    "get_writer",
    "memory_writer",
    "publish",
    "publish_many",
    "publish_on_commit",
    "relay_writer",
    "replace_writer",
]

_writers: dict[str, Writer] = {}
_relay_writers: dict[str, Writer] = {}
# What tests have put in their place.
_replaced: dict[str, Writer] = {}


def get_writer(alias: str = DEFAULT) -> Writer:
    """The Writer of an entry of GNSQSYNC, the same in all threads of a process. Do not close it.

    It connects at its first publish. The child of a fork connects anew by itself. It is closed at
    the end of the process.

    Args:
        alias: The entry of ``GNSQSYNC``.

    Raises:
        ImproperlyConfigured: The entry is missing or wrong.
    """
    writer = _replaced.get(alias) or _writers.get(alias)
    if writer is None:
        entry = get_alias(alias)
        made = memory_writer(alias) if entry.is_memory else Writer(**entry.writer_keywords())
        writer = _writers.setdefault(alias, made)
    return writer


def relay_writer(alias: str) -> Writer:
    """As ``get_writer()``, for callers that nobody waits for: in an outage it waits for the
    timeout."""
    writer = _replaced.get(alias) or _relay_writers.get(alias)
    if writer is None:
        entry = get_alias(alias)
        if entry.is_memory:
            return get_writer(alias)
        made = Writer(**{**entry.writer_keywords(), "outage": "wait"})
        writer = _relay_writers.setdefault(alias, made)
    return writer


def all_writers() -> dict[str, Writer]:
    """The Writers of all entries, by name; missing ones are made, and not connected."""
    return {alias: get_writer(alias) for alias in aliases()}


def memory_writer(alias: str) -> MemoryWriter:
    """A new one, with the limits of that entry."""
    keywords = get_alias(alias).writer_keywords()
    return MemoryWriter(keywords.pop("nsqd_tcp_addresses", None) or "127.0.0.1:4150", **keywords)


def publish(
    topic: str,
    body: bytes | str,
    *,
    alias: str = DEFAULT,
    defer: float | None = None,
    timeout: float | None = None,
) -> None:
    """``get_writer(alias).publish(...)``: returns when nsqd has the message, or raises.

    In an async view call it through ``sync_to_async(publish, thread_sensitive=False)``, as it
    blocks.

    Args:
        topic: The topic; nsqd creates it.
        body: bytes, or a str, which is sent as UTF-8; not empty.
        alias: The entry of ``GNSQSYNC``.
        defer: Seconds until it is delivered; None: at once.
        timeout: Seconds; None: the ``publish_timeout`` of the settings.
    """
    get_writer(alias).publish(topic, body, defer=defer, timeout=timeout)


def publish_many(
    topic: str,
    bodies: Iterable[bytes | str],
    *,
    alias: str = DEFAULT,
    timeout: float | None = None,
) -> None:
    """``get_writer(alias).publish_many(...)``: several messages with as few MPUB as possible.

    Args:
        topic: The topic; nsqd creates it.
        bodies: The messages, as of ``publish()``; one or more.
        alias: The entry of ``GNSQSYNC``.
        timeout: Seconds for all of them; None: the ``publish_timeout`` of the settings.
    """
    get_writer(alias).publish_many(topic, bodies, timeout=timeout)


def publish_on_commit(
    topic: str,
    body: bytes | str,
    *,
    using: str | None = None,
    robust: bool = False,
    alias: str = DEFAULT,
    defer: float | None = None,
    timeout: float | None = 2.0,
) -> None:
    """Publish when the transaction of the database ``using`` commits; never if it rolls back.

    Outside of a transaction that is at once. A crash between commit and publish loses the message.

    Args:
        topic: The topic; nsqd creates it.
        body: bytes, or a str, which is sent as UTF-8; not empty.
        using: The alias of a database; None: the default one.
        robust: Whether Django only logs a PublishError.
        alias: The entry of ``GNSQSYNC``.
        defer: Seconds until it is delivered; None: at once.
        timeout: Seconds; short, since a request waits for it.

    Raises:
        ConfigError: At once, when topic, body or ``defer`` is not allowed.
        PublishError: Where the transaction ends, after its commit, unless ``robust``.
    """
    # Encode now: errors are raised here, and later changes of the body have no effect.
    get_writer(alias)._encode(topic, body, defer)
    data = body.encode() if isinstance(body, str) else bytes(body)

    def send() -> None:
        get_writer(alias).publish(topic, data, defer=defer, timeout=timeout)

    transaction.on_commit(send, using=using, robust=robust)


def replace_writer(alias: str, writer: Writer | None) -> Writer | None:
    """Make ``get_writer(alias)`` return another one, until it is called with what it returned."""
    before = _replaced.pop(alias, None)
    if writer is not None:
        _replaced[alias] = writer
    return before


def close_writers() -> None:
    """At the end of a command: close the Writers of this process, the next ones are new.

    Those for tests stay: a test that has called the command reads their messages.
    """
    for writers in (_writers, _relay_writers):
        for alias, writer in list(writers.items()):
            if not isinstance(writer, MemoryWriter):
                del writers[alias]
                writer.close()


def forget_writers() -> None:
    """The settings have changed: the next ``get_writer()`` reads them anew."""
    for writers in (_writers, _relay_writers):
        while writers:
            _, writer = writers.popitem()
            writer.close()
