"""A dead letter, read from a message, and a filter of dead letters. Receives nothing."""

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

# The header with the number of earlier deaths. A message that is sent back keeps only this one of
# the headers "dead...".
_COUNT = "deadcount"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that was given up, as it lies in a topic of dead letters.

    A Reader without ``headers=True`` writes no headers. Then only ``id``, ``time``, ``body``,
    ``nsqd`` and ``message_id`` are known; the other attributes are empty, 0 or None.

    Attributes:
        id: The id of the dead message; without headers the id of the letter.
        topic: The topic of the dead message.
        channel: The channel that gave it up.
        origin_nsqd: ``host:port`` of the nsqd that delivered it to that channel.
        attempts: Number of its deliveries to that channel.
        first_time: Time of its publish; None without headers.
        time: Time of its death; without headers the time at which nsqd got the letter.
        reason: The reason of its death in one line.
        error: The type of the exception, as ``builtins.ValueError``.
        text: The text of the exception.
        traceback: The end of the exception's traceback.
        handler: The name of the handler.
        deaths: Number of its deaths, this one included; without headers always 1.
        headers: The headers of the dead message itself.
        body: The body of the dead message.
        nsqd: ``host:port`` of the nsqd where the letter lies.
        message_id: The id of the letter there.
        delivered: Number of deliveries of the letter, each look included.
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
        """Return the letter in a message from a topic of dead letters.

        The Reader of the message may have ``headers=True`` or not.

        Args:
            message: The message as a Reader of the topic of dead letters got it.
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
        """Return the bytes to publish: the body in an envelope with its headers and ``deadcount``.

        A message without headers is just its body, because other channels may not open envelopes.
        """
        # A body that is an envelope itself needs another around it, or it would be opened.
        if not self.headers and opened(self.body) is None:
            return self.body
        try:
            return encode({**self.headers, _COUNT: str(self.deaths)}, self.body)
        except ConfigError:
            # The count does not fit into the envelope, or another program has written odd headers.
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
    """A choice of dead letters: a letter matches if it meets all conditions that are given.

    Args:
        reason: A part of ``reason`` or ``error``, in upper or lower case. Default: any.
        older_than: Least number of seconds since the death. Default: no limit.
        newer_than: Largest number of seconds since the death. Default: no limit.
        ids: Values of ``id`` or ``message_id``, of which one must match. Default: any.
        topic: The topic of the dead message. Default: any.
        channel: The channel that gave it up. Default: any.

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
        """Return True if the letter meets all conditions.

        Args:
            letter: The letter to look at.
            now: The time from which ages count. Default: the time of this machine.
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
