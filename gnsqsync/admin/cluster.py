"""The whole cluster: all servers are asked side by side, and their answers are merged.

Knows the questions to each server and how errors are collected. Does not know HTTP.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from gnsqsync.addresses import Address
from gnsqsync.admin import shapes, sums
from gnsqsync.admin.shapes import Shape
from gnsqsync.admin.turns import give_turn, on_greenlets
from gnsqsync.admin.upstream import Failed, Upstream, failures
from gnsqsync.cluster.asking import Calls, Outcomes, Workers, ask_all
from gnsqsync.daemon.secrets import shown
from gnsqsync.errors import ConfigError

__all__ = ["AllFailed", "Cluster", "Place", "http_address", "told"]

_OF_ADDRESSES = re.compile(r"[^\s/@?#\\,]+")
# Upper bound of servers that are asked at the same time.
_SIDE_BY_SIDE = 256
# Upper bound of servers whose connections are kept. nsqds come and go, so old ones are dropped.
_MOST_SERVERS = 2000

_T = TypeVar("_T")
# A topic, a channel, and an nsqd that has it.
Place = tuple[str, str, str]
# A function that receives a sentence about each entry of an answer that is left out.
LeftOut = Callable[[str], object]
# Upper bound of left-out entries of one answer that are named. Further ones are counted.
_MOST_LEFT_OUT = 5


class AllFailed(Exception):
    """No server of a kind answered. The text has a line for each server.

    ``is_missing``: True if no server has failed, because there was none to ask, or because each
    answered that it does not have the topic or channel.
    """

    def __init__(self, kind: str, errors: Sequence[str]) -> None:
        # The real nsqadmin uses this text even if there was no address to ask.
        super().__init__(f"failed to query any {kind}: " + "\n".join(errors))
        self.is_missing: bool = not failures(errors)


class Cluster:
    """The servers of one nsqadmin.

    A method returns its result and the errors of single servers, as lines for a warning. It raises
    AllFailed if no server answered, or if there was no server to ask.

    Args:
        lookupds: ``host:port`` of nsqlookupds' HTTP APIs; may be assigned anew at any time.
        nsqds: ``host:port`` of nsqds' HTTP APIs, which are asked if there are no ``lookupds``.
        log: Gets a line before each request.
        timeout: Seconds for which a server may be silent.
        options: Further arguments of HTTPClient.

    Threads:
        Any thread may call.
    """

    def __init__(
        self,
        lookupds: Sequence[str],
        nsqds: Sequence[str],
        log: Callable[[str], None],
        *,
        timeout: float = 5.0,
        **options: Any,
    ) -> None:
        self.lookupds: tuple[str, ...] = tuple(lookupds)
        self.nsqds: tuple[str, ...] = tuple(nsqds)
        self._log = log
        self._options: dict[str, Any] = {"timeout": timeout, **options}
        # Guards ``_servers``, ``_workers`` and ``_is_cut``.
        self._lock = threading.Lock()
        # Servers by kind and address.
        self._servers: dict[tuple[str, str], Upstream] = {}
        # The tasks that ask, made at the first request, because a process may fork after
        # create_app().
        self._workers: Workers | None = None
        # True after ``cut``: no server is asked any more.
        self._is_cut = False

    def cut(self) -> None:
        """End all requests, and let each further one fail at once. ``close`` comes next."""
        with self._lock:
            self._is_cut = True
            servers = list(self._servers.values())
        for server in servers:
            server.cut()

    def close(self) -> None:
        """Close all connections, and wait for the ends of the tasks."""
        self.cut()
        with self._lock:
            servers, self._servers = list(self._servers.values()), {}
            workers = self._workers
        for server in servers:
            server.close()
        if workers is not None:
            workers.join()

    def topics(self) -> tuple[list[str] | None, list[str]]:
        """Return the sorted names of all topics, or None if there are none."""
        lookupds = self.lookupds
        if lookupds:
            found, errors = self._lookups(lookupds, _listed_topics)
        else:
            found, errors = self._nsqds(self.nsqds, _topic_names)
        return sorted({name for names in found for name in names}) or None, errors

    def inactive(self, topics: Sequence[str]) -> tuple[dict[str, list[str] | None], list[str]]:
        """Return the topics that no nsqd has, with their channels, and the errors.

        A topic that no nsqlookupd answers for is left out, because an nsqd may have it.
        """
        found: dict[str, list[str] | None] = {}
        errors: dict[str, None] = {}
        for name in topics if self.lookupds else ():
            try:
                producers, some = self.having(name)
            except AllFailed as error:
                producers, some = [], str(error).splitlines()
                if not error.is_missing:
                    errors |= dict.fromkeys(some)
                    continue
            errors |= dict.fromkeys(failures(some))
            if not producers:
                found[name] = self._channel_names(name)
        return found, [*errors]

    def nodes(self) -> tuple[list[Shape], list[str]]:
        """Return all nsqds, sorted by host name."""
        lookupds = self.lookupds
        if not lookupds:
            return self._nsqds(self.nsqds, _own_node)
        found, errors = self._lookups(lookupds, _known_nodes)
        merged: dict[str, Shape] = {}
        for nodes in found:
            for where, node in nodes:
                key = str(Address(node["broadcast_address"], node["tcp_port"]))
                known = merged.setdefault(key, node)
                known["remote_addresses"] = [*(known["remote_addresses"] or ()), where]
        newest = max((shapes.version(node["version"]) for node in merged.values()), default=())
        for node in merged.values():
            node["out_of_date"] = shapes.version(node["version"]) < newest
        return sorted(merged.values(), key=lambda node: node["hostname"]), errors

    def topic(self, name: str) -> tuple[Shape, list[list[str]]]:
        """Return a topic, summed over its nsqds, and the errors of each of the two stages."""
        producers, errors = self.having(name)
        stats, more = self._stats(producers, {"topic": name, "include_clients": "false"})
        total = sums.new_topic(name)
        for one in stats:
            sums.add_topic(total, one)
        return total, [errors, more]

    def channel(self, topic: str, name: str) -> tuple[Shape | None, list[list[str]]]:
        """Return a channel with its clients, or None if no nsqd has it; and errors by stage."""
        producers, errors = self.having(topic)
        stats, more = self._stats(producers, {"topic": topic, "channel": name})
        total = None
        for one in stats:
            for channel in one["channels"] or ():
                if channel["channel_name"] == name:
                    total = total or sums.new_channel(one["node"], topic, name)
                    sums.add_channel(total, channel)
        return total, [errors, more]

    def node(self, name: str) -> tuple[list[Shape] | None, list[str]]:
        """Return the topics of the nsqd ``broadcast_address:http_port``, or None if unknown."""
        nodes, errors = self.nodes()
        for node in nodes:
            if http_address(node) == name:
                stats, more = self._stats([node], {})
                return stats, [*errors, *more]
        return None, errors

    def counters(self) -> tuple[dict[str, Shape], list[list[str]]]:
        """Return the messages that each channel of each nsqd got, by ``topic:channel:node``."""
        nodes, errors = self.nodes()
        stats, more = self._stats(nodes, {"include_clients": "false"})
        found: dict[str, Shape] = {}
        for topic in stats:
            for channel in topic["channels"] or ():
                names = (topic["topic_name"], channel["channel_name"], topic["node"])
                entry = found.setdefault(
                    ":".join(names),
                    {
                        "node": topic["node"],
                        "topic_name": topic["topic_name"],
                        "channel_name": channel["channel_name"],
                        "message_count": 0,
                    },
                )
                entry["message_count"] += channel["message_count"]
        return dict(sorted(found.items())), [errors, more]

    def calls(self) -> Calls[str, Any]:
        """Return calls of the caller's own, which share the limit of all questions."""
        return Calls(self._asking())

    def stats_of(self, address: str, read: Callable[[Shape], _T]) -> _T:
        """Call ``read`` with one nsqd's ``/stats`` without clients. Raises Failed."""
        server = self._server("nsqd", address)
        stats = server.get("/stats", format="json", include_clients="false")
        # Hundreds of answers may come at once, so other greenlets get a turn in between.
        give_turn()
        return read(stats)

    def ready_of(self, places: Sequence[Place], seconds: float) -> Outcomes[Place, int]:
        """Return, by topic, channel and nsqd, the sum of the RDY of the consumers there."""
        calls = {place: partial(self._ready_of, *place) for place in places}
        return ask_all(calls, workers=self._asking(), seconds=seconds)

    def having(self, topic: str) -> tuple[list[Shape], list[str]]:
        """Return the nsqds that have the topic and are not tombstoned."""
        if self.lookupds:
            return self.listed(topic)
        found, errors = self._nsqds(
            self.nsqds, lambda server, left_out: _own_node_of(server, topic, left_out)
        )
        return _merged(found), errors

    def listed(self, topic: str) -> tuple[list[Shape], list[str]]:
        """Return the nsqds that nsqlookupds list for the topic."""
        found, errors = self._lookups(
            self.lookupds, lambda server, left_out: _looked_up(server, topic, left_out)
        )
        return _merged(found), errors

    def post(
        self,
        kind: str,
        addresses: Sequence[str],
        path: str,
        params: dict[str, str],
        body: bytes | None = None,
    ) -> list[str]:
        """POST to the servers, one after another. Return the failures."""
        errors = []
        for address in addresses:
            try:
                self._server(kind, address).post(path, params, body)
            except Failed as error:
                errors.append(str(error))
        return errors

    def forget(self) -> None:
        """Drop all kept answers, so that servers are asked anew."""
        with self._lock:
            servers = list(self._servers.values())
        for server in servers:
            server.forget()

    def _ready_of(self, topic: str, channel: str, address: str) -> int:
        server = self._server("nsqd", address)
        stats = server.get("/stats", format="json", topic=topic, channel=channel)
        ready = 0
        for found in shapes.objects(stats, "topics"):
            for one in shapes.objects(found, "channels"):
                if (found.get("topic_name"), one.get("channel_name")) == (topic, channel):
                    clients = shapes.objects(one, "clients")
                    ready += sum(sum(shapes.numbers(each, ["ready_count"])) for each in clients)
        return ready

    def _channel_names(self, topic: str) -> list[str] | None:
        try:
            found, _ = self._lookups(
                self.lookupds,
                lambda server, left_out: _listed_channels(server, topic, left_out),
            )
        except AllFailed:
            return None
        return sorted({name for names in found for name in names}) or None

    def _stats(
        self, producers: Sequence[Shape], params: dict[str, str]
    ) -> tuple[list[Shape], list[str]]:
        hosts = {http_address(node): node["hostname"] for node in producers}
        now = int(time.time())

        def ask(server: Upstream, address: str, left_out: LeftOut) -> list[Shape]:
            found = shapes.each(
                server.get("/stats", format="json", **params),
                "topics",
                lambda entry: shapes.topic(entry, address, hosts[address], now, left_out),
                left_out,
            )
            name = params.get("topic")
            return [topic for topic in found if name in (None, topic["topic_name"])]

        found, errors = self._each("nsqd", list(hosts), ask)
        topics = [topic for topics in found for topic in topics]
        return sorted(topics, key=lambda topic: topic["hostname"]), errors

    def _lookups(
        self, addresses: Sequence[str], ask: Callable[[Upstream, LeftOut], _T]
    ) -> tuple[list[_T], list[str]]:
        return self._each("nsqlookupd", addresses, lambda server, _, left: ask(server, left))

    def _nsqds(
        self, addresses: Sequence[str], ask: Callable[[Upstream, LeftOut], _T]
    ) -> tuple[list[_T], list[str]]:
        return self._each("nsqd", addresses, lambda server, _, left: ask(server, left))

    def _each(
        self, kind: str, addresses: Sequence[str], ask: Callable[[Upstream, str, LeftOut], _T]
    ) -> tuple[list[_T], list[str]]:
        """Ask each server. Return the answers in the order of the addresses, and the errors."""

        def asked(address: str) -> tuple[_T, list[str]]:
            left_out: list[str] = []
            found = ask(self._server(kind, address), address, left_out.append)
            return found, told(f"{kind} {shown(address)}", left_out)

        calls = {place: partial(asked, each) for place, each in enumerate(addresses)}
        outcomes = ask_all(calls, workers=self._asking())
        errors = [str(error) for error in outcomes.failures.values()]
        if not outcomes.answers:
            raise AllFailed(kind, errors)
        errors += [line for _, lines in outcomes.answers.values() for line in lines]
        return [found for found, _ in outcomes.answers.values()], errors

    def _server(self, kind: str, address: str) -> Upstream:
        """Return the server at an address. Raise Failed if the text is no address.

        nsqlookupd lists any text that an nsqd registers. With a path or a user in the text, a
        request would go to another place. An address from the command line may have a user.
        """
        if kind == "nsqd" and address not in self.nsqds and not _OF_ADDRESSES.fullmatch(address):
            raise Failed(f"{address!r:.80} is no address of an nsqd")
        with self._lock:
            if self._is_cut:
                raise Failed("nsqadmin is closing")
            server = self._servers.get((kind, address))
            if server is None:
                while len(self._servers) >= _MOST_SERVERS:
                    self._servers.pop(next(iter(self._servers))).close()
                try:
                    server = Upstream(
                        address,
                        lambda url: self._log(f"CI: querying {kind} {url}"),
                        **self._options,
                    )
                except ConfigError as error:
                    raise Failed(str(error)) from None
                self._servers[kind, address] = server
            return server

    def _asking(self) -> Workers:
        with self._lock:
            if self._workers is None:
                # Web servers run pages on the threads of ``threading``, whatever sockets are.
                self._workers = Workers(
                    "gevent" if on_greenlets() else "threads",
                    _SIDE_BY_SIDE,
                    "gnsqsync-admin",
                )
            return self._workers


def http_address(node: Shape) -> str:
    """Return nsqadmin's name of an nsqd: ``broadcast_address:http_port``."""
    return str(Address(node["broadcast_address"], node["http_port"]))


def told(where: str, left_out: Sequence[str]) -> list[str]:
    """Return a line for each of the first sentences about an answer, and one for the rest."""
    lines = [f"{where}: {text}" for text in left_out[:_MOST_LEFT_OUT]]
    if len(left_out) > _MOST_LEFT_OUT:
        lines.append(f"{where}: {len(left_out) - _MOST_LEFT_OUT} more entries are left out")
    return lines


def _merged(found: list[list[Shape]]) -> list[Shape]:
    nodes: dict[str, Shape] = {}
    for some in found:
        for node in some:
            nodes.setdefault(http_address(node), node)
    return list(nodes.values())


def _listed_topics(server: Upstream, left_out: LeftOut) -> list[str]:
    return [*shapes.strings(server.get("/topics"), "topics", left_out).values()]


def _listed_channels(server: Upstream, topic: str, left_out: LeftOut) -> list[str]:
    answer = server.get("/channels", topic=topic)
    return [*shapes.strings(answer, "channels", left_out).values()]


def _topic_names(server: Upstream, left_out: LeftOut) -> list[str]:
    return _names(server.get("/stats", format="json"), left_out)


def _names(stats: Shape, left_out: LeftOut) -> list[str]:
    return shapes.each(
        stats, "topics", lambda entry: str(shapes.value(entry, "topic_name", str)), left_out
    )


def _known_nodes(server: Upstream, left_out: LeftOut) -> list[tuple[str, Shape]]:
    """Return nsqlookupd's nodes, each with the address at which nsqlookupd sees it."""

    def known(entry: Shape) -> tuple[str, Shape]:
        flags = shapes.value(entry, "tombstones", list)
        topics = [
            {"topic": name, "tombstoned": number < len(flags) and flags[number] is True}
            for number, name in shapes.strings(entry, "topics", left_out).items()
        ]
        node = shapes.node(entry, sorted(topics, key=lambda topic: str(topic["topic"])))
        return f"{server.shown}/{node['remote_address'] or 'N/A'}", node

    return shapes.each(server.get("/nodes"), "producers", known, left_out)


def _looked_up(server: Upstream, topic: str, left_out: LeftOut) -> list[Shape]:
    answer = server.get("/lookup", topic=topic)
    return shapes.each(answer, "producers", lambda entry: shapes.node(entry, []), left_out)


def _own_node(server: Upstream, left_out: LeftOut) -> Shape:
    info = server.get("/info")
    names = _names(server.get("/stats", format="json", include_clients="false"), left_out)
    return shapes.node(info, [{"topic": name, "tombstoned": False} for name in names])


def _own_node_of(server: Upstream, topic: str, left_out: LeftOut) -> list[Shape]:
    """Return the asked nsqd as a list with one item, or [] if it does not have the topic."""
    stats = server.get("/stats", format="json", topic=topic, include_clients="false")
    if topic not in _names(stats, left_out):
        return []
    return [shapes.node(server.get("/info"), [{"topic": topic, "tombstoned": False}])]
