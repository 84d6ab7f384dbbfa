"""For the tests of a Django project: what was published, without an nsqd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gnsqsync.django.config import DEFAULT
from gnsqsync.django.writers import memory_writer, replace_writer
from gnsqsync.writer.memory import CapturedMessage

__all__ = ["CapturedMessage", "captured_messages"]


@contextmanager
def captured_messages(
    alias: str = DEFAULT, *, eager: bool = False
) -> Iterator[list[CapturedMessage]]:
    """Inside of the ``with`` nothing that is published over ``alias`` leaves the process.

    In a TestCase ``publish_on_commit`` waits for ``self.captureOnCommitCallbacks(execute=True)``.

    Args:
        alias: The entry of ``GNSQSYNC``.
        eager: Whether each publish calls the handlers of its topic, as with ``"BACKEND": "eager"``.

    Yields:
        The list of messages, which grows as they are published, by any thread. Each has ``topic``,
        ``body``, ``defer`` and ``json()``.
    """
    writer = memory_writer(alias, eager=eager)
    before = replace_writer(alias, writer)
    try:
        yield writer.messages
    finally:
        replace_writer(alias, before)
