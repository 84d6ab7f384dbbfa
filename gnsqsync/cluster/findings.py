"""A finding about a cluster: what is wrong, and what would be right."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["Finding", "Level"]


class Level(IntEnum):
    """Severity. ERROR: messages wait or cannot pass now. WARNING: they may. HINT: worth a look."""

    HINT = 1
    WARNING = 2
    ERROR = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding. ``wrong`` and ``right`` are a sentence each.

    ``kind``: its name for programs, which stays the same. ``where``: the topic, channel or server.
    ``messages``: number of messages that are concerned.
    """

    kind: str
    level: Level
    where: str
    wrong: str
    right: str
    messages: int = 0
