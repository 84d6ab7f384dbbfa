"""A cluster at one moment, as far as its servers tell. Plain values, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gnsqsync.http.lookupd_types import Node
from gnsqsync.http.nsqd_types import NsqdInfo, Stats, TopicStats
from gnsqsync.wire.handshake import Negotiated

__all__ = ["LIMITS", "Lookupd", "Nsqd", "Snapshot", "Trial"]

# Options of nsqd that are compared, and the flag of each.
LIMITS = {
    "mem_queue_size": "--mem-queue-size",
    "msg_timeout": "--msg-timeout",
    "max_msg_timeout": "--max-msg-timeout",
    "max_req_timeout": "--max-req-timeout",
    "max_rdy_count": "--max-rdy-count",
    "max_msg_size": "--max-msg-size",
}


@dataclass(frozen=True, slots=True)
class Trial:
    """An attempt to use an address as a consumer on this machine would.

    ``verdict``: ``away`` if nothing listens, ``silent`` if a server listens and does not answer,
    ``refused`` if it answers and does not take this client, ``other`` if another nsqd answers.
    ``why``: the error, or who answered.
    """

    address: str
    verdict: Literal["good", "away", "silent", "refused", "other"] = "good"
    why: str = ""


@dataclass(frozen=True, slots=True)
class Lookupd:
    """An nsqlookupd. ``error``: why it gave no answer, or "".

    ``ahead``: seconds by which its clock is ahead of the clock of this machine, None if unknown.
    """

    address: str
    error: str = ""
    nodes: tuple[Node, ...] = ()
    version: str = ""
    ahead: float | None = None


@dataclass(frozen=True, slots=True)
class Nsqd:
    """An nsqd.

    ``name``: the address for consumers, by which it is called in texts. ``asked``: the HTTP address
    that answered, or the one that did not. ``error``: why no HTTP address answered, or "".
    ``health``: the text of ``/ping``. ``before`` and ``after``: its figures at both looks.
    ``limits``: values of LIMITS in nsqd's units. ``listed``: its entry at each nsqlookupd that
    lists it. ``tcp`` and ``http``: the trials of its advertised addresses, None if unknown.
    ``agreed``: its answer to IDENTIFY and AUTH. ``ahead``: see Lookupd.
    """

    name: str
    asked: str = ""
    error: str = ""
    info: NsqdInfo | None = None
    health: str = "OK"
    before: Stats | None = None
    after: Stats | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    listed: Mapping[str, Node] = field(default_factory=dict)
    tcp: Trial | None = None
    http: Trial | None = None
    agreed: Negotiated | None = None
    ahead: float | None = None

    @property
    def topics(self) -> dict[str, TopicStats]:
        """Topics by name at the second look."""
        return {one.topic_name: one for one in self.after.topics} if self.after else {}

    @property
    def topics_before(self) -> dict[str, TopicStats]:
        """Topics by name at the first look."""
        return {one.topic_name: one for one in self.before.topics} if self.before else {}

    @property
    def waiting(self) -> int:
        """Number of messages that wait here, each channel's copies counted."""
        return sum(
            topic.depth + sum(channel.depth for channel in topic.channels)
            for topic in self.topics.values()
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A cluster. ``seconds``: time between the two looks.

    ``topic`` and ``channel`` are those of the question; ``topic`` is None for the whole cluster.
    Figures have only that topic, with all channels.
    """

    nsqds: tuple[Nsqd, ...]
    lookupds: tuple[Lookupd, ...] = ()
    seconds: float = 2.0
    topic: str | None = None
    channel: str | None = None
