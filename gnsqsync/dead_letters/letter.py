"""One dead letter, read from a message, and which of them are wanted. Receives nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from gnsqsync.envelope import encode, opened, restore
from gnsqsync.errors import ConfigError
from gnsqsync.message import Message
from gnsqsync.options import check_duration
from gnsqsync.reader.death import DEATH_HEADERS

__all__ = ["DeadLetter", "Filter"]

# How often a message died before, on its way back. Of the headers "dead..." it alone stays.
_COUNT = "deadcount"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that was given up, as it lies in a topic of dead letters.

    Without headers, as of a Reader without ``headers=True``, only ``id``, ``time``, ``body``,
    ``nsqd`` and ``message_id`` are known; the others are empty, 0 or None.

    Attributes:
        id: The id that the message had; without headers the one that the letter has.
        topic: The topic that it came from.
        channel: The channel that gave it up.
        origin_nsqd: ``host:port`` of the nsqd that delivered it there.
        attempts: How often it had been delivered there.
        first_time: When it was published.
        time: When it died; without headers when nsqd got the letter.
        reason: Why, in one line.
        error: The type of the exception, as ``builtins.ValueError``.
        text: What the exception said.
        traceback: The end of its traceback.
        handler: The name of the handler.
        deaths: How often it died, this time included; of a message without headers always 1.
        headers: Those that the message itself had.
        body: The body that it had.
        nsqd: ``host:port`` of the nsqd where the letter lies.
        message_id: The id that the letter has there.
        delivered: How often the letter has been delivered, each look included.
    """

    id: str
    topic: str = ""
    channel: str = ""
    origin_nsqd: str = ""
    attempts: int = 0
    first_time: datetime | None = None
    time: datetime
    reason: str = ""
    error: str = ""
    text: str = ""
    traceback: str = ""
    handler: str = ""
    deaths: int = 1
    headers: Mapping[str, str]
    body: bytes
    nsqd: str
    message_id: str
    delivered: int = 1

    @classmethod
    def of(cls, message: Message) -> DeadLetter:
        """A message of a topic of dead letters, and its story.

        A body that only looks like an envelope stays whole, if the Reader has no ``headers=True``.

        Args:
            message: The message.
        """
        headers, body = message.headers, message.body
        if not message._is_opened:
            headers, body = opened(body) or (headers, body)
        known = {name: headers.get(name, "") for name in DEATH_HEADERS}
        arrived = datetime.fromtimestamp(message.timestamp / 1e9, UTC)
        return cls(
            id=known["deadid"] or message.id,
            topic=known["deadtopic"],
            channel=known["deadchannel"],
            origin_nsqd=known["deadnsqd"],
            attempts=_count(known["deadattempts"]),
            first_time=_time(known["deadfirsttime"]),
            time=_time(known["deadtime"]) or arrived,
            reason=known["deadreason"],
            error=known["deaderror"],
            text=known["deadtext"],
            traceback=known["deadtraceback"],
            handler=known["deadhandler"],
            deaths=1 + _count(headers.get(_COUNT, "")),
            headers={
                name: value
                for name, value in headers.items()
                if name not in DEATH_HEADERS and name != _COUNT
            },
            body=body,
            nsqd=message.nsqd_address,
            message_id=message.id,
            delivered=message.attempts,
        )

    def as_published(self) -> bytes:
        """The bytes to publish: the body in an envelope with its own headers and ``deadcount``.

        Just the body where the message had no headers: other channels may not open envelopes.
        """
        # A body that is an envelope itself would be opened.
        if not self.headers and opened(self.body) is None:
            return self.body
        try:
            return encode({**self.headers, _COUNT: str(self.deaths)}, self.body)
        except ConfigError:
            # The envelope is full without the count, or has names that others have written.
            return restore(self.headers, self.body)


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which dead letters are meant: those that meet all that is given.

    Args:
        reason: A part of ``reason`` or ``error``, in upper or lower case.
        older_than: Seconds since its death, at least.
        newer_than: Seconds since its death, at most.
        ids: Any of these, as ``id`` or ``message_id``; none: all.
        topic: The topic that it came from.
        channel: The channel that gave it up.

    Raises:
        ConfigError: A value is not allowed.
    """

    reason: str = ""
    older_than: float | None = None
    newer_than: float | None = None
    ids: Collection[str] = ()
    topic: str = ""
    channel: str = ""

    def __post_init__(self) -> None:
        for name in ("older_than", "newer_than"):
            if getattr(self, name) is not None:
                check_duration(name, getattr(self, name), finite=True)
        if isinstance(self.ids, str):
            raise ConfigError(f"ids is {self.ids!r}; give a list of ids")

    def matches(self, letter: DeadLetter, now: datetime | None = None) -> bool:
        """Whether the letter is meant.

        Args:
            letter: Which one.
            now: The time from which ages count; None: that of this machine.
        """
        if self.ids and not {letter.id, letter.message_id} & set(self.ids):
            return False
        if (self.topic or letter.topic, self.channel or letter.channel) != (
            letter.topic,
            letter.channel,
        ):
            return False
        wanted = self.reason.lower()
        if wanted not in letter.reason.lower() and wanted not in letter.error.lower():
            return False
        age = ((now or datetime.now(UTC)) - letter.time).total_seconds()
        old_enough = self.older_than is None or age >= self.older_than
        return old_enough and (self.newer_than is None or age <= self.newer_than)
