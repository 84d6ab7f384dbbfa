"""The Writers of the settings' entries, one for each process, and functions that publish with them.

In tests the Writers keep the messages in memory, unless the settings say otherwise. A Writer is
fork safe by itself. dict.setdefault is atomic, so there is no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from django.core import mail
from django.db import DEFAULT_DB_ALIAS, transaction

from gnsqsync import Writer
from gnsqsync.django.config import DEFAULT, aliases, get_alias, in_tests
from gnsqsync.django.databases import check_joins
from gnsqsync.django.eager import deliver_of
from gnsqsync.keywords import checks_names
from gnsqsync.testing.keepable import KeepableMemoryWriter, KeepableWriter
from gnsqsync.testing.memory import CapturedMessage, MemoryWriter

__all__ = [
    "all_writers",
    "close_writers",
    "forget_captured",
    "forget_writers",
    "get_writer",
    "memory_writer",
    "publish",
    "publish_many",
    "publish_on_commit",
    "relay_writer",
    "replace_writer",
]

# Writers by entry, and by ``in_tests()``: a test runner sets up the process after the imports.
_writers: dict[tuple[str, bool], Writer] = {}
# Writers of relays, by the same keys.
_relay_writers: dict[tuple[str, bool], Writer] = {}
# Writers that tests have put in place of the others, by entry.
_replaced: dict[str, Writer] = {}
# Messages that the current test has published, by entry.
_captured: dict[str, list[CapturedMessage]] = {}
# The list ``mail.outbox`` that Django made for the current test.
_outbox: object = None


def _captured_by_test(alias: str) -> list[CapturedMessage]:
    """Return the list of messages of the current test, which lasts over changes of settings."""
    global _outbox
    # Django makes a new ``mail.outbox`` for each test, so another object means another test.
    outbox = getattr(mail, "outbox", None)
    if outbox is not _outbox:
        _outbox = outbox
        forget_captured()
    return _captured.setdefault(alias, [])


def forget_captured() -> None:
    """Empty the lists of captured messages, at the begin of a test."""
    for messages in list(_captured.values()):
        messages.clear()


def get_writer(alias: str = DEFAULT) -> Writer:
    """Return the Writer of an entry of GNSQSYNC, the same for all threads. Do not close it.

    The Writer connects at its first publish, and anew in the child of a fork. It is closed at the
    end of the process. In tests it connects to nothing, unless ``BACKEND`` says otherwise, and its
    ``messages`` is the list of messages that the test has published. A module may store the Writer
    at import: each call is forwarded to the Writer that counts at that moment.

    Args:
        alias: The entry of ``GNSQSYNC``. Default: "default".

    Raises:
        ImproperlyConfigured: The entry is missing or wrong.
    """
    key = alias, in_tests()
    writer = _replaced.get(alias) or _writers.get(key)
    if writer is None:
        entry = get_alias(alias)
        made: Writer
        if entry.is_captured:
            # The memory backend has one list for all tests.
            messages = None if entry.backend == "memory" else partial(_captured_by_test, alias)
            made = memory_writer(alias, messages=messages, eager=entry.backend == "eager")
        else:
            made = KeepableWriter(**entry.writer_keywords(), current=partial(get_writer, alias))
        writer = _writers.setdefault(key, made)
    return writer


def relay_writer(alias: str) -> Writer:
    """Return the Writer of a relay. In an outage it waits for its timeout, as no user waits."""
    key = alias, in_tests()
    writer = _replaced.get(alias) or _relay_writers.get(key)
    if writer is None:
        entry = get_alias(alias)
        if entry.is_captured:
            return get_writer(alias)
        made = Writer(**{**entry.writer_keywords(), "outage": "wait"})
        writer = _relay_writers.setdefault(key, made)
    return writer


def all_writers() -> dict[str, Writer]:
    """Return the Writers of all entries by name. Missing ones are made, but not connected."""
    return {alias: get_writer(alias) for alias in aliases()}


def memory_writer(
    alias: str,
    *,
    messages: Callable[[], list[CapturedMessage]] | None = None,
    eager: bool = False,
) -> MemoryWriter:
    """Return a new MemoryWriter with the limits of that entry. ``messages``: as of MemoryWriter.

    With ``eager`` each publish calls the handlers of the entry.
    """
    keywords = get_alias(alias).writer_keywords()
    # A MemoryWriter connects to no server, so it asks no nsqlookupd.
    keywords.pop("lookupd_http_addresses", None)
    keywords["nsqd_tcp_addresses"] = keywords.get("nsqd_tcp_addresses") or None
    return KeepableMemoryWriter(
        **keywords,
        messages=messages,
        deliver=deliver_of(alias) if eager else None,
        current=partial(get_writer, alias),
    )


def publish(
    topic: str,
    body: bytes | str,
    *,
    alias: str = DEFAULT,
    defer: float | None = None,
    timeout: float | None = None,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Publish with ``get_writer(alias)``. Return when nsqd has the message, or raise PublishError.

    The call blocks. In an async view use ``sync_to_async(publish, thread_sensitive=False)``.

    Args:
        topic: The topic; nsqd creates it.
        body: bytes, or a str, which is sent as UTF-8; not empty.
        alias: The entry of ``GNSQSYNC``. Default: "default".
        defer: Seconds until nsqd delivers the message. Default: at once.
        timeout: Seconds until the publish gives up. Default: ``publish_timeout`` of the settings.
        headers: For ``message.headers``; needs ``"headers": True`` in ``OPTIONS``. Default: none.
    """
    get_writer(alias).publish(topic, body, defer=defer, timeout=timeout, headers=headers)


def publish_many(
    topic: str,
    bodies: Iterable[bytes | str],
    *,
    alias: str = DEFAULT,
    timeout: float | None = None,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Publish several messages with ``get_writer(alias)``, with as few MPUB as possible.

    Args:
        topic: The topic; nsqd creates it.
        bodies: The messages, as for ``publish()``; one or more.
        alias: The entry of ``GNSQSYNC``. Default: "default".
        timeout: Seconds for all messages. Default: ``publish_timeout`` of the settings.
        headers: As for ``publish()``. Default: none.
    """
    get_writer(alias).publish_many(topic, bodies, timeout=timeout, headers=headers)


@checks_names
def publish_on_commit(
    topic: str,
    body: bytes | str,
    *,
    using: str | None = None,
    robust: bool = False,
    alias: str = DEFAULT,
    defer: float | None = None,
    timeout: float | None = 2.0,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Publish when the transaction of the database ``using`` commits; never if it rolls back.

    Outside of a transaction the message is published at once. A crash between commit and publish
    loses the message.

    Args:
        topic: The topic; nsqd creates it.
        body: bytes, or a str, which is sent as UTF-8; not empty.
        using: The alias of a database. Default: the default database.
        robust: True if Django must only log a PublishError. Default: False.
        alias: The entry of ``GNSQSYNC``. Default: "default".
        defer: Seconds until nsqd delivers the message. Default: at once.
        timeout: Seconds until the publish gives up; short, because a request waits. Default: 2.
        headers: As for ``publish()``. Default: none.

    Raises:
        ConfigError: At once, if topic, body or ``defer`` is not allowed, or if ``using`` is missing
            although a transaction is open on another database than the default one.
        PublishError: At the end of the transaction, after its commit, unless ``robust``.
    """
    # The body is encoded now, so errors are raised here and later changes have no effect.
    get_writer(alias).encoder.check(topic, body, defer=defer, headers=headers)
    data = body.encode() if isinstance(body, str) else bytes(body)
    copied = None if headers is None else dict(headers)

    def send() -> None:
        get_writer(alias).publish(topic, data, defer=defer, timeout=timeout, headers=copied)

    if using is None:
        check_joins(DEFAULT_DB_ALIAS)
    transaction.on_commit(send, using=using, robust=robust)


def replace_writer(alias: str, writer: Writer | None) -> Writer | None:
    """Make ``get_writer(alias)`` return ``writer``. Return the replaced one, to put it back."""
    before = _replaced.pop(alias, None)
    if writer is not None:
        _replaced[alias] = writer
    return before


def close_writers() -> None:
    """Close the Writers of this process, at the end of a command. Later calls make new ones.

    Writers for tests stay, because a test that has called the command reads their messages.
    """
    for writers in (_writers, _relay_writers):
        for key, writer in list(writers.items()):
            if not isinstance(writer, MemoryWriter):
                del writers[key]
                writer.close()


def forget_writers() -> None:
    """Close all Writers after a change of settings. The next ``get_writer()`` reads them anew."""
    for writers in (_writers, _relay_writers):
        while writers:
            _, writer = writers.popitem()
            writer.close()
