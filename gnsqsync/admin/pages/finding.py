"""Topics, channels and nsqds for the pages, and the text of a page for one that is missing.

Knows the cluster. Knows no template. If no server has the topic, channel or nsqd, the page is a 404
with the nearest names. If a server does not answer, the page is a 502 with the likely cause.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from gnsqsync.admin.cluster import AllFailed, Cluster, http_address
from gnsqsync.admin.shapes import Shape
from gnsqsync.admin.upstream import failures

__all__ = ["UNREGISTERED", "Absent", "Finding", "away_text", "silent_text"]

# Likely cause of an nsqlookupd that lists no nsqd.
UNREGISTERED = (
    "No nsqd is registered, so nsqadmin and consumers find none: start each nsqd with"
    " --lookupd-tcp-address, the TCP address of each nsqlookupd (port 4160 by default)."
)

# Number of similar names that a page suggests, and of nsqds that a hint names.
_NEAR = 5
_NAMED = 5

Parts = tuple[str, ...]


class Absent(Exception):
    """The topic, channel or nsqd that a page cannot show.

    ``near``: paths of suggested pages, in parts. ``unborn``: the topic, if nsqlookupds know it and
    no nsqd has it; else "".
    """

    def __init__(
        self,
        title: str,
        text: str,
        status: int,
        near: Sequence[Parts] = (),
        unborn: str = "",
    ) -> None:
        super().__init__(text)
        self.title = title
        self.text = text
        self.status = status
        self.near = near
        self.unborn = unborn


def away_text(addresses: Sequence[str], *, is_listed: bool) -> str:
    """Return the likely cause of unreachable nsqds. ``is_listed``: nsqlookupd lists them."""
    which = f"nsqd {addresses[0]}" if len(addresses) == 1 else f"{len(addresses)} nsqds"
    named = f": {', '.join(addresses[:_NAMED])}" if len(addresses) > 1 else ""
    if len(addresses) > _NAMED:
        named += f" and {len(addresses) - _NAMED} more"
    lists = "nsqlookupd lists" if is_listed else "An --nsqd-http-address leads to"
    return (
        f"{lists} {which} that cannot be reached from here{named}. If it runs and is not merely"
        " slow, it announces an address that is not valid on this machine: start it with a"
        " --broadcast-address that nsqadmin and all consumers can reach."
    )


def silent_text(*, is_listed: bool) -> str:
    """Return the likely cause of a server of the options that does not answer.

    ``is_listed``: True if the options name nsqlookupds, False for nsqds.
    """
    kind, option, port = ("nsqlookupd", "--lookupd-http-address", 4161)
    if not is_listed:
        kind, option, port = ("nsqd", "--nsqd-http-address", 4151)
    return (
        f"Topics of a server that does not answer may be missing here. Does each {kind} run, and"
        f" does {option} name its HTTP port ({port} by default)?"
    )


class Finding:
    """A finder of topics, channels and nsqds for the pages.

    A method returns its result and the failures, a line each. It raises Absent.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def topic(self, name: str) -> tuple[Shape, list[str]]:
        """Return a topic, summed over its nsqds."""
        title = f"Topic {name}"
        nodes, failed = self._having(name)
        if not nodes and failed:
            raise Absent(
                title, "\n".join(["An nsqd that does not answer may have it.", *failed]), 502
            )
        if not nodes:
            raise self._no_topic(name)
        try:
            topic, stages = self._cluster.topic(name)
        except AllFailed as error:
            raise self._away(title, nodes, str(error)) from None
        errors = failures([error for stage in stages for error in stage])
        if not topic["nodes"]:
            raise self._away(title, nodes, "\n".join(errors)) if errors else self._no_topic(name)
        return topic, errors

    def channel(self, topic: str, name: str) -> tuple[Shape, list[str]]:
        """Return a channel with its clients."""
        title = f"Channel {name} of {topic}"
        try:
            channel, stages = self._cluster.channel(topic, name)
        except AllFailed as error:
            # If the topic is absent, this raises Absent with a better reason.
            self.topic(topic)
            raise Absent(title, str(error), 502) from None
        errors = failures([error for stage in stages for error in stage])
        if channel is not None:
            return channel, errors
        found, _ = self.topic(topic)
        names = [each["channel_name"] for each in found["channels"] or ()]
        near: list[Parts] = [("topics", topic, one) for one in _nearest(name, names)]
        near = near or [("topics", topic)]
        if errors:
            text = "\n".join(["No nsqd that answers has this channel.", *errors])
            raise Absent(title, text, 502, near)
        raise Absent(title, "No nsqd has this channel.", 404, near)

    def node(self, name: str) -> tuple[list[Shape], list[str]]:
        """Return the topics of the nsqd ``broadcast_address:http_port``."""
        title = f"Node {name}"
        try:
            nodes, errors = self._cluster.nodes()
        except AllFailed as error:
            raise Absent(title, str(error), 502) from None
        known = {http_address(node): node for node in nodes}
        if name not in known:
            near = [("nodes", one) for one in _nearest(name, [*known])]
            raise Absent(title, "There is no such nsqd.", 404, near)
        try:
            topics, errors = self._cluster.node(name)
        except AllFailed as error:
            raise self._away(title, [known[name]], str(error)) from None
        return topics or [], failures(errors)

    def topic_at(self, topic: str, node: str) -> tuple[Shape, list[str]]:
        """Return a topic on the nsqd ``broadcast_address:http_port`` alone."""
        topics, errors = self.node(node)
        for found in topics:
            if found["topic_name"] == topic:
                return found, errors
        title = f"Topic {topic} on {node}"
        raise Absent(title, "This nsqd does not have the topic.", 404, [("topics", topic)])

    def _having(self, name: str) -> tuple[list[Shape], list[str]]:
        try:
            nodes, errors = self._cluster.having(name)
        except AllFailed as error:
            if error.is_missing:
                return [], []
            raise Absent(f"Topic {name}", str(error), 502) from None
        return nodes, failures(errors)

    def _away(self, title: str, nodes: Sequence[Shape], why: str) -> Absent:
        addresses = [http_address(node) for node in nodes]
        text = away_text(addresses, is_listed=bool(self._cluster.lookupds))
        return Absent(title, f"{text}\n{why}", 502)

    def _no_topic(self, name: str) -> Absent:
        try:
            names = self._cluster.topics()[0] or []
        except AllFailed:
            names = []
        title = f"Topic {name}"
        if name not in names:
            near = [("topics", one) for one in _nearest(name, names)]
            return Absent(title, "No nsqd has this topic.", 404, near)
        text = (
            "No registered nsqd has this topic; nsqlookupd knows its name.\n"
            "If an nsqd that had it has stopped, its messages wait there, on disk at best: start"
            " that nsqd again.\n"
            f"If it is new, its first message makes it on an nsqd: gnsqsync pub {name} hello"
        )
        return Absent(title, text, 404, unborn=name)


def _nearest(name: str, names: Sequence[str]) -> list[str]:
    # Names that differ in case alone are all suggested.
    by_lower: dict[str, list[str]] = {}
    for one in names:
        by_lower.setdefault(one.lower(), []).append(one)
    close = difflib.get_close_matches(name.lower(), by_lower, _NEAR)
    return [one for lower in close for one in by_lower[lower]][:_NEAR]
