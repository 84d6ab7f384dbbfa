"""A diagnosis of a cluster: the findings, worst first, as lines for people and as JSON.

Knows no command line. All but ``examine`` is pure.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gnsqsync.cluster import of_channels, of_servers
from gnsqsync.cluster.findings import Finding, Level
from gnsqsync.cluster.looking import Question, look
from gnsqsync.cluster.sight import Snapshot
from gnsqsync.cluster.topic_views import topic_views
from gnsqsync.cluster.words import printable
from gnsqsync.stats import counted

__all__ = ["Diagnosis", "examine", "judge"]

# Upper bound of findings that people are shown.
_MOST_SHOWN = 50


def examine(question: Question) -> Diagnosis:
    """Look at a cluster and judge it. Raise ConfigError for a bad name or address."""
    seen = look(question)
    return Diagnosis(seen, judge(seen))


def judge(seen: Snapshot) -> list[Finding]:
    """Return the findings, worst first: by level, then by the number of messages concerned."""
    found = [each for rule in (*of_servers.RULES, *of_channels.RULES) for each in rule(seen)]
    return sorted(found, key=lambda each: (-each.level, -each.messages))


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A snapshot and its findings."""

    seen: Snapshot
    found: list[Finding]

    @property
    def is_good(self) -> bool:
        """True if nothing is wrong. A hint alone is nothing wrong."""
        return all(each.level is Level.HINT for each in self.found)

    def lines(self) -> Iterator[str]:
        """Yield each finding in two lines, then a line with the verdict and what was looked at."""
        for each in self.found[:_MOST_SHOWN]:
            text = each.wrong if each.where in each.wrong else f"{each.where}: {each.wrong}"
            yield f"{each.level.name.lower():8}{printable(text)}"
            yield f"{'':8}-> {printable(each.right)}"
        if len(self.found) > _MOST_SHOWN:
            yield f"and {counted(len(self.found) - _MOST_SHOWN, 'more finding')}; --json shows all"
        yield self._verdict()

    def json(self) -> dict[str, Any]:
        """Return findings and servers as one object for JSON."""
        seen = self.seen
        return {
            "ok": self.is_good,
            "findings": [
                {**dataclasses.asdict(each), "level": each.level.name.lower()}
                for each in self.found
            ],
            "nsqds": [
                {"address": one.name, "http": one.asked or None, "error": one.error or None}
                for one in seen.nsqds
            ],
            "nsqlookupds": [
                {"address": one.address, "error": one.error or None} for one in seen.lookupds
            ],
            "topic": seen.topic,
            "channel": seen.channel,
            "seconds": round(seen.seconds, 3),
        }

    def _verdict(self) -> str:
        views = list(topic_views(self.seen))
        extent = [counted(len(self.seen.nsqds), "nsqd")]
        if self.seen.lookupds:
            extent.append(counted(len(self.seen.lookupds), "nsqlookupd"))
        extent.append(counted(len(views), "topic"))
        extent.append(counted(sum(len(topic.channels) for topic in views), "channel"))
        levels = Counter(each.level for each in self.found)
        told = ", ".join(
            counted(levels[level], level.name.lower()) for level in reversed(Level) if levels[level]
        )
        verdict = "All is well" if self.is_good else "Something is wrong"
        return f"{verdict}: {f'{told} about ' if told else ''}{', '.join(extent)}."
