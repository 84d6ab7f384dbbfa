"""Window of keys that drops messages that this process has handled before.

Knows messages. Must not know a Reader or a database.

Surprise: there is no lock. Single operations on dicts and deques are atomic, and the thread that
pops the one claim of a turn settles it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TypeAlias

from gnsqsync import envelope
from gnsqsync.errors import ConfigError
from gnsqsync.foreign import ends_worker, repr_of, text_of
from gnsqsync.keywords import checks_names
from gnsqsync.message import DONE, Message, Reject, Requeue, no_key
from gnsqsync.middleware import Handler, Middleware
from gnsqsync.options import check_duration, check_int

__all__ = ["KeyWindow"]

log: logging.Logger = logging.getLogger("gnsqsync.reader")

KeyOf: TypeAlias = Callable[[Message], "str | None"]


def _key_of(message: Message) -> str | None:
    return message.headers.get(envelope.KEY)


class _Turn:
    """The message that holds a key alone until its end is known."""

    __slots__ = ("claims", "has_left", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        # True once the middlewares inside the window have returned or raised.
        self.has_left = False
        # A single item. The thread that pops it settles the turn.
        self.claims = [None]

    @property
    def has_ended(self) -> bool:
        return self.has_left and not self.message._is_open


class KeyWindow(Middleware):
    """Handles the first message of a key, and finishes the others without the handler.

    It works within this process and as long as that lives: another consumer of the channel has a
    window of its own. For effects in a database, which outlive the process, use an inbox. Several
    Readers may share a window; a key counts for a topic and channel.

    A key is remembered when its message is done. Either the outermost middleware has returned, and
    the message was neither requeued nor detached; or ``finish()`` was called. If nsqd no longer
    takes that FIN, because of a timeout or a lost connection, the next delivery is finished without
    the handler. Before the message is done, a twin is requeued, so that it is handled if the first
    one fails. A message without a key is handled. A message whose key function fails is rejected.

    Args:
        size: Upper bound of remembered keys, 1 or more.
        key: Returns the key of a message, a str, or None. The default is the header ``key``, for a
            Reader with ``headers=True``.
        delay: Seconds, 0 or more, after which a requeued twin comes again.

    Raises:
        ConfigError: A value is not allowed.

    Threads:
        Any number of workers may use it.
    """

    # False, because ``handle()`` raises nothing of its own after the handler has returned.
    fails_after_handler = False

    @checks_names
    def __init__(
        self, size: int = 100_000, key: KeyOf | None = None, *, delay: float = 1.0
    ) -> None:
        self._size = check_int("size", size, 1)
        if key is not None and not callable(key):
            raise ConfigError(f"key is {key!r}; it must be a function that takes a message")
        self._key = key or _key_of
        self._delay = check_duration("delay", delay)
        # Turns by key. No lock: setdefault() is atomic, and the thread that pops a turn's claim
        # removes or replaces the turn.
        self._turns: dict[tuple[str, str, str], _Turn] = {}
        # Turns that have left, and whose end was not known at the last look.
        self._left: deque[tuple[tuple[str, str, str], _Turn]] = deque()
        # Handled keys, the oldest first. No lock: popitem is atomic, too.
        self._handled: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        # True once the warning about a message without a key was logged.
        self._has_warned = False

    def handle(
        self, message: Message, handler: Handler, proceed: Callable[[Message], object]
    ) -> object:
        """Handle the first message of a key, and skip the handler for the others.

        Args:
            message: The message for the handler.
            handler: The function that the Reader was given.
            proceed: Calls the next middleware or the handler.

        Returns:
            The result of ``proceed``, or None if the key is known.

        Raises:
            Requeue: The twin of the message is not done yet.
        """
        self._look()
        key = self._key_of(message)
        if key is None:
            self._warn(message)
            return proceed(message)
        place = message.topic, message.channel, key
        turn = _Turn(message)
        first = self._turns.setdefault(place, turn)
        if first is not turn:
            if first.message is message:
                return proceed(message)  # this window is twice in the Reader's middleware
            if not self._settle(place, first, turn):
                raise Requeue(self._delay, backoff=False)
        try:
            if place in self._handled:
                log.info(
                    "%s/%s: message %s with key %s was handled before",
                    message.topic,
                    message.channel,
                    message.id,
                    text_of(key),
                )
                return None
            return proceed(message)
        finally:
            # The outer middlewares decide how the message ends, so its end is settled later.
            turn.has_left = True
            self._left.append((place, turn))

    def _key_of(self, message: Message) -> str | None:
        try:
            key: object = self._key(message)
        except BaseException as error:
            # The function is the user's, and may raise anything.
            if ends_worker(error):
                raise
            raise no_key("key", error) from error
        if key is not None and not isinstance(key, str):
            raise Reject(f"its key is {repr_of(key, 200)}; the function must return a str or None")
        return key

    def _settle(
        self, place: tuple[str, str, str], turn: _Turn, following: _Turn | None = None
    ) -> bool:
        """Settle an ended turn, and give the key to the following one.

        Return False if its end is not known, or another thread settles it.
        """
        if not turn.has_ended:
            return False
        try:
            turn.claims.pop()
        except IndexError:
            return False
        if turn.message._status & DONE:
            self._handled[place] = None
            if len(self._handled) > self._size:
                self._handled.popitem(last=False)
        if following is None:
            del self._turns[place]
        else:
            self._turns[place] = following
        return True

    def _look(self) -> None:
        """Look at two turns that have left, so that no ended message is kept for long."""
        for _ in range(2):
            try:
                place, turn = self._left.popleft()
            except IndexError:
                return
            if not self._settle(place, turn) and turn.claims:
                self._left.append((place, turn))

    def _warn(self, message: Message) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s/%s: message %s has no key, so a twin of it would be handled, too; publish with"
                " headers=True and read with headers=True; this is not told again",
                message.topic,
                message.channel,
                message.id,
            )
