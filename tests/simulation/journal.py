"""What is known of each message, from both sides; and the history as text."""

from __future__ import annotations

import io
import logging
from dataclasses import dataclass
from typing import Any

__all__ = ["Journal", "Lines", "Publish", "Stored", "take_log"]


@dataclass
class Publish:
    """One call of a Writer, for one message."""

    body: bytes
    topic: str
    kind: str
    began: float
    timeout: float
    ended: float | None = None
    # ok, not sent, unknown, refused, closed, struck
    outcome: str = ""
    # A Writer that publishes again by itself may have it stored twice.
    may_repeat: bool = False
    # How long the process or an nsqd had stood still when it began (seconds).
    stood_still: float = 0.0


@dataclass
class Stored:
    """A message that an nsqd has accepted."""

    nsqd: str
    topic: str
    at: float


class Journal:
    """``publishes`` by body; ``by_head``: bodies by how they begin; ``stored``: accepted copies."""

    def __init__(self, now: Any) -> None:
        self._now = now
        self.lines = io.StringIO()
        self.publishes: dict[bytes, Publish] = {}
        self.by_head: dict[bytes, bytes] = {}
        self.stored: dict[bytes, list[Stored]] = {}
        # Bodies whose bytes were given to the network as a whole: (when) of the last time.
        self.sent: dict[bytes, float] = {}
        # Handled, by (channel, body): how often.
        self.handled: dict[tuple[str, bytes], int] = {}
        self.gave_up: dict[tuple[str, bytes], int] = {}
        # What a channel has got and nobody has finished: since when, by nsqd, topic, channel, body.
        self.owed: dict[tuple[str, str, str, bytes], float] = {}
        # The FINs that an nsqd has taken: (channel, id, consumer).
        self.finished: set[tuple[Any, bytes, Any]] = set()
        # What an nsqd may have lost: (nsqd, when, which kind).
        self.losses: list[tuple[str, float, str]] = []
        self.violations: list[str] = []

    def note(self, text: str) -> None:
        self.lines.write(f"{self._now():14.7f} {text}\n")

    def violated(self, text: str) -> None:
        self.note(f"VIOLATION {text}")
        self.violations.append(f"{self._now():.4f} {text}")


def take_log(journal: Journal) -> None:
    """What the library logs, from DEBUG on, goes there alone."""
    handler = logging.StreamHandler(Lines(journal))
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    log = logging.getLogger("gnsqsync")
    log.setLevel(logging.DEBUG)
    log.addHandler(handler)
    log.propagate = False


class Lines(io.TextIOBase):
    """What is written becomes lines of the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def write(self, text: str) -> int:
        for line in text.splitlines():
            self._journal.note(line)
        return len(text)
