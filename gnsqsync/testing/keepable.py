"""Writers that an application may store at import. Each call goes to the current Writer.

A module may get its Writer while it is imported, before a test runner says that nothing may leave
the process. Knows no settings. The Django and Flask integrations hand these Writers out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, ClassVar

from gnsqsync.addresses import AddressLike
from gnsqsync.stats import Health, WriterStats
from gnsqsync.testing.memory import CapturedMessage, MemoryWriter
from gnsqsync.writer.encoder import Encoder
from gnsqsync.writer.writer import Writer

__all__ = ["KeepableMemoryWriter", "KeepableWriter"]


class KeepableWriter(Writer):
    """A Writer that forwards each call to the Writer that the application means by then.

    ``current``: returns the Writer that the application would hand out at this moment.
    """

    _frames_to_caller: ClassVar[int] = Writer._frames_to_caller + 1

    def __init__(
        self,
        nsqd_tcp_addresses: AddressLike | None = None,
        *,
        current: Callable[[], Writer],
        **options: Any,
    ) -> None:
        super().__init__(nsqd_tcp_addresses, **options)
        self._current = current

    @property
    def messages(self) -> list[CapturedMessage]:
        """Captured messages, if publishes stay in the process at this moment."""
        current: Any = self._current()
        if current is self:
            raise AttributeError(f"{self!r} has no messages: what it publishes leaves the process")
        messages: list[CapturedMessage] = current.messages
        return messages

    def publish(self, topic: str, body: bytes | str, **options: Any) -> None:
        current = self._current()
        publish = super().publish if current is self else current.publish
        publish(topic, body, **options)

    def publish_many(self, topic: str, bodies: Iterable[bytes | str], **options: Any) -> None:
        current = self._current()
        publish_many = super().publish_many if current is self else current.publish_many
        publish_many(topic, bodies, **options)

    def publish_async(self, topic: str, body: bytes | str, **options: Any) -> Future[None]:
        current = self._current()
        publish_async = super().publish_async if current is self else current.publish_async
        return publish_async(topic, body, **options)

    @property
    def encoder(self) -> Encoder:
        current = self._current()
        return super().encoder if current is self else current.encoder

    def connect(self, timeout: float | None = None) -> None:
        current = self._current()
        (super().connect if current is self else current.connect)(timeout)

    def ping(self, timeout: float | None = None) -> None:
        current = self._current()
        (super().ping if current is self else current.ping)(timeout)

    @property
    def is_connected(self) -> bool:
        current = self._current()
        return super().is_connected if current is self else current.is_connected

    def health(self, name: str = "the Writer") -> Health:
        current = self._current()
        return super().health(name) if current is self else current.health(name)

    def stats(self) -> WriterStats:
        current = self._current()
        return super().stats() if current is self else current.stats()


class KeepableMemoryWriter(KeepableWriter, MemoryWriter):
    """A KeepableWriter that keeps the published messages in the process."""

    @property
    def messages(self) -> list[CapturedMessage]:
        return self._list() if self._current() is self else super().messages
