"""A helper for the tests of a Django project: the published messages, without an nsqd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gnsqsync.django.config import DEFAULT
from gnsqsync.django.writers import memory_writer, replace_writer
from gnsqsync.testing.memory import CapturedMessage

__all__ = ["CapturedMessage", "captured_messages"]


@contextmanager
def captured_messages(
    alias: str = DEFAULT, *, eager: bool = False
) -> Iterator[list[CapturedMessage]]:
    """Capture the messages that are published over ``alias``, instead of sending them to nsqd.

    In a TestCase ``publish_on_commit`` waits for ``self.captureOnCommitCallbacks(execute=True)``.

    Args:
        alias: The entry of ``GNSQSYNC``. Default: "default".
        eager: True if each publish calls the handlers of its topic, as with ``"BACKEND": "eager"``.
            Default: False.

    Yields:
        The list of messages. It grows with each publish. Each message has ``topic``, ``body``,
        ``defer`` and ``json()``.

    Threads:
        Publishes of any thread are captured.
    """
    writer = memory_writer(alias, eager=eager)
    before = replace_writer(alias, writer)
    try:
        yield writer.messages
    finally:
        replace_writer(alias, before)
