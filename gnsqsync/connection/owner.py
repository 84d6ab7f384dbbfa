"""What a connection tells, and whom: its owner of its end, a consumer of messages. Types only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gnsqsync.errors import ServerError
from gnsqsync.message import Fate, Message

if TYPE_CHECKING:
    from gnsqsync.connection.connection import Connection
    from gnsqsync.connection.message_turn import MessageTurn

__all__ = ["Consumer", "Owner"]


class Owner(Protocol):
    """Whom a connection tells about its end."""

    def on_lost(self, connection: Connection, reason: Exception) -> None:
        """It is gone, once; messages are orphaned, publishes failed. By the reading thread."""


class Consumer(Protocol):
    """Whom a subscribed connection tells about messages."""

    def on_messages(
        self, connection: Connection, messages: list[Message], turns: MessageTurn | None = None
    ) -> None:
        """New ones, already in the in-flight table. By the reading thread: must not block.

        ``turns``: a worker gets one message and, with it, the turn to read what comes next.
        """

    def may_read(self, connection: Connection) -> bool:
        """Whether a worker could read its messages: one that has nothing else to do."""

    def on_read(self, connection: Connection) -> None:
        """A worker read a message, and is going to handle it. By that worker, often."""

    def on_quiet(self, connection: Connection) -> None:
        """nsqd has answered CLS: no more messages. By the reading thread."""

    def on_answer_failed(self, connection: Connection, message_id: str, error: ServerError) -> None:
        """nsqd refused a FIN, REQ or TOUCH: not ours any more. By the reading thread."""

    def on_answered(self, connection: Connection, success: bool | None) -> None:
        """A message was answered by a call on it; by the calling thread, outside all locks.

        ``success``: True for FIN, False for REQ with backoff, None for REQ without.
        """

    def on_failure(self, connection: Connection, message: Message) -> Fate | None:
        """A REQ with backoff is about to be sent; by the calling thread, outside all locks.

        None: send it. Else it was the last attempt, and this is what became of the message.
        """

    def on_finished(self, count: int) -> None:
        """So many were finished by one call; by the calling thread, outside all locks."""

    def requeue_delay_for(self, message: Message) -> float:
        """Seconds of a REQ without a delay of its own."""
