"""Two looks at a cluster, and trials of each advertised address, as a snapshot.

Knows who is asked what. Must not judge the answers. A trial sends IDENTIFY and AUTH, but no SUB and
no RDY, so it changes nothing at an nsqd.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from gnsqsync.addresses import Address, AddressLike, parse_addresses
from gnsqsync.cluster.asking import Outcomes, ask_all
from gnsqsync.cluster.servers import Servers, next_port
from gnsqsync.cluster.sight import LIMITS, Lookupd, Nsqd, Snapshot, Trial
from gnsqsync.connection.opening import Opening
from gnsqsync.connection.stream import Stream
from gnsqsync.errors import ConfigError, ConnectionLost, HTTPError, NSQError
from gnsqsync.http.clients import LookupdHTTP, Node, NsqdHTTP, NsqdInfo, Stats
from gnsqsync.message import Responder
from gnsqsync.options import (
    ConnectionOptions,
    check_channel,
    check_duration,
    check_topic,
    https_options,
)
from gnsqsync.runtime import Runtime, RuntimeLike, choose
from gnsqsync.wire.frames import FrameDecoder
from gnsqsync.wire.handshake import Negotiated

__all__ = ["Question", "look"]

# Upper bound of servers that are asked at a time.
_SIDE_BY_SIDE = 64
# Timeouts that the answers of all servers to one stage of a look may take.
_PATIENCE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The servers to look at, and the topic and channel, or None for the whole cluster.

    ``nsqd_tcp``: the addresses by which consumers know nsqds. Without ``nsqd_http`` the next ports
    are asked over HTTP. ``seconds``: time between the two looks. ``timeout``: seconds of a call.
    """

    nsqd_tcp: AddressLike = ()
    nsqd_http: tuple[str, ...] = ()
    lookupd_http: tuple[str, ...] = ()
    topic: str | None = None
    channel: str | None = None
    seconds: float = 2.0
    timeout: float = 5.0
    options: ConnectionOptions = field(default_factory=ConnectionOptions)
    runtime: RuntimeLike | None = None


def look(question: Question) -> Snapshot:
    """Look at a cluster twice. Raise ConfigError for a bad or missing address, or a bad name."""
    if not (question.nsqd_tcp or question.nsqd_http or question.lookupd_http):
        raise ConfigError("there is no address to ask; give those of nsqds or nsqlookupds")
    check_duration("seconds", question.seconds, 0.1)
    if question.topic is not None:
        check_topic(question.topic)
    if question.channel is not None:
        check_channel(question.channel)
    looking = _Looking(question, choose(question.runtime))
    try:
        return looking.run()
    finally:
        looking.servers.close()


class _Facts(NamedTuple):
    """Answers of an nsqd at the first look."""

    info: NsqdInfo
    stats: Stats
    limits: dict[str, int]
    ahead: float | None


class _Looking:
    def __init__(self, question: Question, runtime: Runtime) -> None:
        self._question = question
        self._options = question.options
        self._runtime = runtime
        self._tcp = parse_addresses(question.nsqd_tcp)
        # The TCP address for each HTTP address that was guessed.
        self._guessed: dict[str, Address] = {}
        if not question.nsqd_http:
            for address in self._tcp:
                guess = next_port(address)
                if guess is not None:
                    self._guessed[str(self._options.dial_address(guess))] = address
        self._fixed = tuple(dict.fromkeys(question.nsqd_http or self._guessed))
        keywords: Any = https_options(self._options)
        if question.runtime is not None:
            keywords["runtime"] = runtime
        self.servers = Servers(
            self._fixed,
            question.lookupd_http,
            at_a_time=_SIDE_BY_SIDE,
            timeout=question.timeout,
            **keywords,
        )
        # Seconds for each stage of the look.
        self._limit = _PATIENCE * question.timeout

    def run(self) -> Snapshot:
        question = self._question
        lookupds = self._lookupds()
        listed: dict[tuple[str, int], dict[str, Node]] = {}
        for lookupd in lookupds:
            for node in lookupd.nodes:
                key = (node.broadcast_address, node.tcp_port)
                listed.setdefault(key, {}).setdefault(lookupd.address, node)
        bad: dict[str, NSQError] = {}
        clients: dict[str, NsqdHTTP] = {one: self.servers.nsqd(one) for one in self._fixed}
        for address in [self._http_of(one) for one in listed.values()]:
            try:
                clients[address] = self.servers.nsqd(address)
            except ConfigError as error:
                # An nsqd registered what is no address.
                bad[address] = error
        facts = self.servers.ask(clients, self._facts, self._limit)
        began = self._runtime.now()
        facts.failures.update(bad)
        nsqds = self._nsqds(listed, facts)
        trials = ask_all(
            {name: partial(self._try, address) for name, (_, address) in nsqds.items() if address},
            runtime=self._runtime,
            at_a_time=_SIDE_BY_SIDE,
        )
        rest = began + question.seconds - self._runtime.now()
        if rest > 0 and facts.answers:
            # Nobody sets the event: the second look needs a time between the two.
            self._runtime.event().wait(rest)
        answering = {one.asked: clients[one.asked] for one, _ in nsqds.values() if not one.error}
        answering.pop("", None)
        seconds = self._runtime.now() - began
        seen = self.servers.ask(answering, partial(_stats, question.topic), self._limit)
        whole = []
        for name, (one, _) in nsqds.items():
            trial, agreed = trials.answers.get(name, (None, None))
            after = seen.answers.get(one.asked)
            late = seen.failures.get(one.asked)
            whole.append(
                replace(
                    one,
                    tcp=trial,
                    agreed=agreed,
                    after=after or one.before,
                    error=one.error or ("" if late is None else str(late)),
                    health=one.health if after is None else after.health,
                )
            )
        return Snapshot(tuple(whole), lookupds, seconds, question.topic, question.channel)

    def _lookupds(self) -> tuple[Lookupd, ...]:
        nodes = self.servers.ask(self.servers.lookupds, LookupdHTTP.nodes, self._limit)
        clients = {address: self.servers.lookupds[address] for address in nodes.answers}
        facts = self.servers.ask(
            clients, lambda client: (client.info().version, _ahead(client)), self._limit
        )
        found = []
        for address, client in self.servers.lookupds.items():
            version, ahead = facts.answers.get(address, ("", None))
            error = nodes.failures.get(address)
            found.append(
                Lookupd(
                    client.url,
                    "" if error is None else str(error),
                    nodes.answers.get(address, ()),
                    version,
                    ahead,
                )
            )
        return tuple(found)

    def _http_of(self, listed: Mapping[str, Node]) -> str:
        node = next(iter(listed.values()))
        return str(self._options.dial_address(Address(node.broadcast_address, node.http_port)))

    def _facts(self, client: NsqdHTTP) -> _Facts:
        info = client.info()
        limits: dict[str, int] = {}
        for name in LIMITS:
            try:
                value = client.get_config(name)
            except HTTPError:
                continue  # This nsqd does not know the option.
            if isinstance(value, int):
                limits[name] = value
        return _Facts(info, _stats(self._question.topic, client), limits, _ahead(client))

    def _nsqds(
        self, listed: Mapping[tuple[str, int], Mapping[str, Node]], facts: Outcomes[str, _Facts]
    ) -> dict[str, tuple[Nsqd, Address | None]]:
        """Return each nsqd once by its name, with the TCP address to try.

        An nsqd may be known by a fixed address and by its entry at nsqlookupds. Its own ``/info``
        tells that both are the same.
        """
        found: dict[str, tuple[Nsqd, Address | None]] = {}
        fixed = dict.fromkeys(self._fixed)
        for key, nodes in listed.items():
            asked = self._http_of(nodes)
            fixed.pop(asked, None)
            same = [each for each in fixed if _key(facts.answers.get(each)) == key]
            for each in same:
                del fixed[each]
            trial = Trial(asked)
            fact = facts.answers.get(asked)
            if fact is None:
                trial = Trial(asked, "away", str(facts.failures[asked]))
            elif _key(fact) != key:
                who = Address(fact.info.broadcast_address, fact.info.tcp_port)
                trial = Trial(asked, "other", f"{who} ({fact.info.hostname})")
                fact = None
            if fact is None and same:
                asked, fact = same[0], facts.answers[same[0]]
            one = self._nsqd(str(Address(*key)), asked, fact, trial.why)
            found[one.name] = replace(one, http=trial, listed=nodes), Address(*key)
        for each in fixed:
            fact = facts.answers.get(each)
            error = "" if fact is not None else str(facts.failures[each])
            tcp = self._guessed.get(each)
            if fact is not None and fact.info.tcp_port > 0:
                tcp = Address(_host(each), fact.info.tcp_port)
            one = self._nsqd(str(tcp or each), each, fact, error)
            trial = Trial(each, "away" if error else "good", error)
            found.setdefault(one.name, (replace(one, http=trial), tcp))
        known = {tcp for _, tcp in found.values()} | {Address(*key) for key in listed}
        for fact in facts.answers.values():
            known.add(Address(*(_key(fact) or ("", 0))))
        for address in self._tcp:
            if address not in known and address not in self._guessed.values():
                found.setdefault(str(address), (Nsqd(str(address)), address))
        return found

    @staticmethod
    def _nsqd(name: str, asked: str, fact: _Facts | None, why: str) -> Nsqd:
        if fact is None:
            return Nsqd(name, asked, why)
        return Nsqd(
            name,
            asked,
            info=fact.info,
            health=fact.stats.health,
            before=fact.stats,
            limits=fact.limits,
            ahead=fact.ahead,
        )

    def _try(self, address: Address) -> tuple[Trial, Negotiated | None]:
        """Dial as a consumer, and do the handshake without SUB."""
        # No message can arrive without SUB, so nobody answers one.
        decoder = FrameDecoder(cast("Responder", None), self._options.max_frame_size)
        opening = Opening(address, self._options, self._runtime, decoder, topic=None, channel=None)
        streams: list[Stream] = []
        shown = str(self._options.dial_address(address))
        limit = min(self._question.timeout, self._options.connect_timeout)
        try:
            return Trial(shown), opening.run(streams.append, limit)
        except NSQError as error:
            if not isinstance(error, ConnectionLost):
                return Trial(shown, "refused", str(error)), None
            if not streams:
                return Trial(shown, "away", str(error)), None
            is_silent = isinstance(error.__cause__, TimeoutError)
            return Trial(shown, "silent" if is_silent else "refused", str(error)), None
        finally:
            for stream in streams:
                stream.close()


def _stats(topic: str | None, client: NsqdHTTP) -> Stats:
    return client.stats(topic, include_mem=False)


def _ahead(client: NsqdHTTP | LookupdHTTP) -> float | None:
    """Return the seconds by which the server's clock is ahead of this machine's, or None."""
    began = time.time()
    try:
        told = client.server_time()
    except HTTPError:
        return None  # /ping of an nsqd that is not healthy
    # The header has whole seconds, so its moment is half a second later on average.
    return None if told is None else told + 0.5 - (began + time.time()) / 2


def _key(fact: _Facts | None) -> tuple[str, int] | None:
    return None if fact is None else (fact.info.broadcast_address, fact.info.tcp_port)


def _host(http_address: str) -> str:
    url = http_address if "://" in http_address else f"http://{http_address}"
    return urlsplit(url).hostname or ""
