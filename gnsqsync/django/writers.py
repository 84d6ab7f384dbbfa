"""One Writer per entry of the settings and process, and the ways to publish with it.

In tests they are Writers that keep what is published, unless the settings say otherwise.

A Writer is fork safe by itself; dict.setdefault is atomic, so there is no lock.
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
from gnsqsync.writer.keepable import KeepableMemoryWriter, KeepableWriter
from gnsqsync.writer.memory import CapturedMessage, MemoryWriter

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

# By entry, and by whether a test runner has set up the process: that happens after imports.
_writers: dict[tuple[str, bool], Writer] = {}
_relay_writers: dict[tuple[str, bool], Writer] = {}
# What tests have put in their place.
_replaced: dict[str, Writer] = {}
# What the test at hand has published, by entry, and the outbox of mails that Django made for it.
_captured: dict[str, list[CapturedMessage]] = {}
_outbox: object = None


def _captured_by_test(alias: str) -> list[CapturedMessage]:
    """What was published since the test began, as ``mail.outbox`` has its mails; also over a change
    of the settings."""
    global _outbox
    # Django makes a new one for each test.
    outbox = getattr(mail, "outbox", None)
    if outbox is not _outbox:
        _outbox = outbox
        forget_captured()
    return _captured.setdefault(alias, [])


def forget_captured() -> None:
    """A test begins: the lists of what was captured are empty again."""
    for messages in list(_captured.values()):
        messages.clear()


def get_writer(alias: str = DEFAULT) -> Writer:
    """The Writer of an entry of GNSQSYNC, the same in all threads of a process. Do not close it.

    It connects at its first publish. The child of a fork connects anew by itself. It is closed at
    the end of the process. In tests, unless ``BACKEND`` says otherwise, it connects to nothing, and
    its ``messages`` is the list of what the test has published. A module may keep it: one from
    before the tests, or before a change of the settings, publishes as the one of that moment.

    Args:
        alias: The entry of ``GNSQSYNC``.

    Raises:
        ImproperlyConfigured: The entry is missing or wrong.
    """
    key = alias, in_tests()
    writer = _replaced.get(alias) or _writers.get(key)
    if writer is None:
        entry = get_alias(alias)
        made: Writer
        if entry.is_captured:
            # The list of the memory backend goes over all tests.
            messages = None if entry.backend == "memory" else partial(_captured_by_test, alias)
            made = memory_writer(alias, messages=messages, eager=entry.backend == "eager")
        else:
            made = KeepableWriter(**entry.writer_keywords(), current=partial(get_writer, alias))
        writer = _writers.setdefault(key, made)
    return writer


def relay_writer(alias: str) -> Writer:
    """As ``get_writer()``, for callers that nobody waits for: in an outage it waits for the
    timeout."""
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
    """The Writers of all entries, by name; missing ones are made, and not connected."""
    return {alias: get_writer(alias) for alias in aliases()}


def memory_writer(
    alias: str,
    *,
    messages: Callable[[], list[CapturedMessage]] | None = None,
    eager: bool = False,
) -> MemoryWriter:
    """A new one, with the limits of that entry; ``messages`` as of MemoryWriter.

    With ``eager`` each publish calls the handlers of the entry.
    """
    keywords = get_alias(alias).writer_keywords()
    # It connects to none.
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
    """``get_writer(alias).publish(...)``: returns when nsqd has the message, or raises.

    In an async view call it through ``sync_to_async(publish, thread_sensitive=False)``, as it
    blocks.

    Args:
        topic: The topic; nsqd creates it.
        body: bytes, or a str, which is sent as UTF-8; not empty.
        alias: The entry of ``GNSQSYNC``.
        defer: Seconds until it is delivered; None: at once.
        timeout: Seconds; None: the ``publish_timeout`` of the settings.
        headers: For ``message.headers``; needs ``"headers": True`` in ``OPTIONS``.
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
    """``get_writer(alias).publish_many(...)``: several messages with as few MPUB as possible.

    Args:
        topic: The topic; nsqd creates it.
        bodies: The messages, as of ``publish()``; one or more.
        alias: The entry of ``GNSQSYNC``.
        timeout: Seconds for all of them; None: the ``publish_timeout`` of the settings.
        headers: As of ``publish()``.
    """
    get_writer(alias).publish_many(topic, bodies, timeout=timeout, headers=headers)


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

    Outside of a transaction that is at once. A crash between commit and publish loses the message.

    Args:
        topic: The topic; nsqd creates it.
        body: bytes, or a str, which is sent as UTF-8; not empty.
        using: The alias of a database; None: the default one.
        robust: Whether Django only logs a PublishError.
        alias: The entry of ``GNSQSYNC``.
        defer: Seconds until it is delivered; None: at once.
        timeout: Seconds; short, since a request waits for it.
        headers: As of ``publish()``.

    Raises:
        ConfigError: At once, when topic, body or ``defer`` is not allowed, or ``using`` is missing:
            a transaction is open, but on another database than the default one.
        PublishError: Where the transaction ends, after its commit, unless ``robust``.
    """
    # Encode now: errors are raised here, and later changes of the body have no effect.
    get_writer(alias).encoder.check(topic, body, defer=defer, headers=headers)
    data = body.encode() if isinstance(body, str) else bytes(body)
    copied = None if headers is None else dict(headers)

    def send() -> None:
        get_writer(alias).publish(topic, data, defer=defer, timeout=timeout, headers=copied)

    if using is None:
        check_joins(DEFAULT_DB_ALIAS)
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
        for key, writer in list(writers.items()):
            if not isinstance(writer, MemoryWriter):
                del writers[key]
                writer.close()


def forget_writers() -> None:
    """The settings have changed: the next ``get_writer()`` reads them anew."""
    for writers in (_writers, _relay_writers):
        while writers:
            _, writer = writers.popitem()
            writer.close()
