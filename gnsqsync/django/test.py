"""For the tests of a Django project: what was published, without an nsqd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gnsqsync.django.config import DEFAULT
from gnsqsync.django.writers import memory_writer, replace_writer
from gnsqsync.writer.memory import CapturedMessage

__all__ = ["CapturedMessage", "captured_messages"]


@contextmanager
def captured_messages(alias: str = DEFAULT) -> Iterator[list[CapturedMessage]]:
    """Inside of the ``with`` nothing that is published over ``alias`` leaves the process.

    Yields the list of messages, which grows as they are published, by any thread. In a TestCase
    ``publish_on_commit`` waits for ``self.captureOnCommitCallbacks(execute=True)``.
    """
    writer = memory_writer(alias)
    before = replace_writer(alias, writer)
    try:
        yield writer.messages
    finally:
        replace_writer(alias, before)
