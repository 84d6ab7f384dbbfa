"""Connection to one nsqd that publishes: how a Link sends publishes and ends them.

Knows the queue of publishes and who reads their answers. Must not know which nsqd takes a publish,
or redials: it tells its owner.

``send_queue`` holds the publishes on their way, ``publishes`` sends them and reads the answers, and
``_close_queue`` gives each of the rest an outcome.

Surprise: an error frame names no publish, either. It belongs to the oldest command that waits for
an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from gnsqsync.addresses import Address
from gnsqsync.connection.link import Link
from gnsqsync.connection.opening import Opening
from gnsqsync.connection.publish_queue import PublishQueue
from gnsqsync.connection.publish_slot import end_each
from gnsqsync.connection.publishes import Publishes
from gnsqsync.connection.stream import Stream
from gnsqsync.errors import ConnectionLost, ServerError
from gnsqsync.options import ConnectionOptions
from gnsqsync.runtime import Runtime

__all__ = ["Owner", "PublishingConnection"]


class Owner(Protocol):
    """The object that a publishing connection tells about its end."""

    def on_lost(self, connection: PublishingConnection, reason: Exception) -> None:
        """Called once, by the reading thread, after all unanswered publishes have an outcome."""


class PublishingConnection(Link):
    """A connection that publishes."""

    def __init__(
        self, address: Address, options: ConnectionOptions, runtime: Runtime, owner: Owner
    ) -> None:
        super().__init__(address, options, runtime, None)
        self._owner = owner

    # Set by open(). Callers publish through ``publishes``, and read the answers.
    send_queue: PublishQueue
    publishes: Publishes

    @property
    def published(self) -> int:
        """Count of messages that nsqd has confirmed."""
        return self.publishes.replies.published if self.connected_at else 0

    def _new_opening(self) -> Opening:
        return Opening(self.address, self._options, self._runtime, self._decoder)

    def _set_up(self, stream: Stream, opening: Opening) -> Publishes:
        self.send_queue = PublishQueue(
            stream, self._runtime, stall_timeout=self._options.heartbeat_interval
        )
        self.publishes = Publishes(
            stream,
            self.send_queue,
            self._decoder,
            self._runtime,
            nsqd_address=self.nsqd_address,
            on_reply=self.on_reply,
            silence=self._silence,
        )
        return self.publishes

    def _on_error(self, error: ServerError) -> None:
        if error.fatal:
            # nsqd reads no later command (docs/protocol/commands#unread-body), so all that was sent
            # later is unread.
            self.send_queue.peer_stopped = True
            if " failed to read " in error.detail:
                # nsqd received part of a publish, and the rest was later than two heartbeats
                # (docs/protocol/timeouts#heartbeats). The connection is at fault, not the message.
                raise ConnectionLost(f"{self.nsqd_address} waited too long for a publish: {error}")
        super()._on_error(error)

    def _close_queue(self, reason: Exception) -> None:
        # A publisher may have read answers just before it met the end of the connection.
        ends: list[Callable[[], None]] = [
            self.publishes.replies.end_futures,
            partial(self.send_queue.close, reason),
        ]
        if isinstance(reason, ServerError):
            # The error belongs to the oldest command that still waits for an answer.
            ends.insert(0, partial(self.send_queue.refuse_oldest, self.nsqd_address, reason))
        end_each(ends)

    def _tell_lost(self, reason: Exception) -> None:
        self._owner.on_lost(self, reason)

    def _end_sending(self, stream: Stream) -> None:
        super()._end_sending(stream)
        self.publishes.recall()
