"""Messages of one lane run one after another, in the order in which they came to this process.

Knows keys and who has which lane; knows no worker and no queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeAlias

from gnsqsync.connection.connection import Connection
from gnsqsync.foreign import ends_worker
from gnsqsync.message import Message, no_key
from gnsqsync.middleware import Handler
from gnsqsync.runtime import Runtime

__all__ = ["KeyOfLane", "Lanes"]

KeyOfLane: TypeAlias = Callable[[Message], Hashable]
Waiting = tuple[Connection, Message]


class Lanes:
    """Who may go to a worker, and who waits for the message before it.

    ``_lock`` guards the tables. The first message of a lane holds it until ``leave``; those that
    come meanwhile are parked here. A lane that nobody holds is not in the tables.
    """

    def __init__(self, key: KeyOfLane, runtime: Runtime) -> None:
        self._key = key
        self._lock = runtime.lock()
        self._holders: dict[Message, Hashable] = {}
        self._parked: dict[Hashable, deque[Waiting]] = {}
        # Errors of the user's function, by message. The worker rejects such a message.
        self._errors: dict[Message, BaseException] = {}

    def admit(self, connection: Connection, messages: Iterable[Message]) -> list[Message]:
        """Those that may go to a worker now; the others are parked. By the reading thread."""
        admitted = []
        for message in messages:
            try:
                key = self._key(message)
                hash(key)
            except BaseException as error:
                # Raised where the handler would run. Here it would end the reading thread.
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
        """The message is done, or went elsewhere; the next one of its lane, which has it now.

        Nothing for a message that holds no lane.
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
        """Take out those whose connections do not hand over any more."""
        with self._lock:
            taken = []
            for parked in self._parked.values():
                gone = [waiting for waiting in parked if not waiting[0].hands_over]
                if gone:
                    staying = [waiting for waiting in parked if waiting[0].hands_over]
                    parked.clear()
                    parked.extend(staying)
                    taken += gone
        yield from taken

    def parked(self) -> set[Message]:
        """Those that wait here at this moment."""
        with self._lock:
            return {message for parked in self._parked.values() for _, message in parked}

    def checked(self, handler: Handler) -> Handler:
        """Return the handler; a message whose lane could not be told is rejected in its place."""

        def call(message: Message) -> object:
            error = self._errors.pop(message, None)
            if error is not None:
                raise no_key("lane", error)
            return handler(message)

        return call
