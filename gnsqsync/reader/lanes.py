"""Lanes: messages of one lane run one after another, in the order in which they came here.

Knows keys, and which message holds which lane. Must not know a worker or a queue.

``admit`` lets the first message of a lane through and parks the others. ``leave`` gives the lane to
the next one.

Surprise: the user's key function runs on the reading thread. Its error is kept, and raised on the
worker, where the handler would run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeAlias

from gnsqsync.connection.subscribed import SubscribedConnection
from gnsqsync.foreign import ends_worker
from gnsqsync.message import Message, no_key
from gnsqsync.middleware import Handler
from gnsqsync.runtime import Runtime

__all__ = ["KeyOfLane", "Lanes"]

KeyOfLane: TypeAlias = Callable[[Message], Hashable]
Waiting = tuple[SubscribedConnection, Message]


class Lanes:
    """Admission of messages to workers, lane by lane.

    ``_lock`` guards the tables. The first message of a lane holds it until ``leave``; messages that
    come meanwhile are parked here. A lane without a holder is not in the tables.
    """

    def __init__(self, key: KeyOfLane, runtime: Runtime) -> None:
        self._key = key
        self._lock = runtime.lock()
        # Lane of each message that holds one.
        self._holders: dict[Message, Hashable] = {}
        # Messages that wait for the holder of their lane, by lane. Each held lane has an entry.
        self._parked: dict[Hashable, deque[Waiting]] = {}
        # Errors of the user's key function, by message. The worker rejects such a message.
        self._errors: dict[Message, BaseException] = {}

    def admit(self, connection: SubscribedConnection, messages: Iterable[Message]) -> list[Message]:
        """Return the messages that may go to a worker; park the others. By the reading thread."""
        admitted = []
        for message in messages:
            try:
                key = self._key(message)
                hash(key)
            except BaseException as error:
                # Raised later, where the handler would run. Here it would end the reading thread.
                if ends_worker(error):
                    raise
                self._errors[message] = error
                key = None
            if key is None:
                admitted.append(message)
                continue
            with self._lock:
                parked = self._parked.get(key)
                if parked is None:
                    self._parked[key] = deque()
                    self._holders[message] = key
                    admitted.append(message)
                else:
                    parked.append((connection, message))
        return admitted

    def leave(self, message: Message) -> Waiting | None:
        """Free the lane of a message that is done or gone. Return the next one, which now holds it.

        Returns None for a message that holds no lane.
        """
        self._errors.pop(message, None)
        with self._lock:
            key = self._holders.pop(message, None)
            if key is None:
                return None
            parked = self._parked[key]
            if not parked:
                del self._parked[key]
                return None
            following = parked.popleft()
            self._holders[following[1]] = key
            return following

    def take_back(self) -> Iterator[Waiting]:
        """Take out parked messages of connections whose ``delivers`` is False."""
        with self._lock:
            taken = []
            for parked in self._parked.values():
                gone = [waiting for waiting in parked if not waiting[0].delivers]
                if gone:
                    staying = [waiting for waiting in parked if waiting[0].delivers]
                    parked.clear()
                    parked.extend(staying)
                    taken += gone
        yield from taken

    def parked(self) -> set[Message]:
        """Return the messages that are parked at this moment."""
        with self._lock:
            return {message for parked in self._parked.values() for _, message in parked}

    def checked(self, handler: Handler) -> Handler:
        """Return a handler that rejects messages whose lane is unknown, and calls this one."""

        def call(message: Message) -> object:
            error = self._errors.pop(message, None)
            if error is not None:
                raise no_key("lane", error)
            return handler(message)

        return call
