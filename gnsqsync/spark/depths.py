"""The cluster as the driver of a query sees it: the nsqds of its topics, and the waiting messages.

Uses HTTP only. Makes the channels, because a query that waits for messages does not subscribe.
After the start nothing here raises: a server that cannot be reached counts as empty, is logged, and
is asked again. The tasks of ``Calls`` send the requests. One thread does all the rest.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from gnsqsync import LookupdHTTP, NsqdHTTP
from gnsqsync.cluster.asking import Calls, Outcome, Workers
from gnsqsync.errors import ConnectionLost, HTTPError, NSQError
from gnsqsync.spark.options import SourceOptions
from gnsqsync.spark.plan import Source

if TYPE_CHECKING:
    from gnsqsync.http.clients import ChannelStats

__all__ = ["Backlog", "Depths", "NoSuchTopic"]

log: logging.Logger = logging.getLogger("gnsqsync.spark")

# Seconds until an nsqd that did not answer is asked again: doubled from the first to the longest.
_FIRST_REST, _LONGEST_REST = 1.0, 30.0
# Seconds until an HTTP request times out.
_PATIENCE = 2.0
# Seconds without any answer after which a look goes on without the missing answers.
_GRACE = 0.25
# Number of servers that are asked at a time.
_THREADS = 32
# Number of these servers that may be ones that did not answer the last time.
_RETRIES = _THREADS // 2


class NoSuchTopic(NSQError):
    """A run with an end names a topic that no server has."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Counts of the messages in a channel of one nsqd.

    ``depth``: messages that can be read now, 0 while the channel is paused. ``done``: messages that
    were finished or thrown away since nsqd started. ``behind_pause``: the depth of a paused
    channel. ``returned``: requeues and timeouts since nsqd started. ``born``: start of nsqd,
    seconds since 1970. ``asked_at``: time of the question, by the monotonic clock. Comparisons
    ignore the last three.
    """

    depth: int
    in_flight: int
    deferred: int
    done: int = 0
    behind_pause: int = 0
    returned: int = field(default=0, compare=False)
    born: int = field(default=0, compare=False)
    asked_at: float = field(default=0.0, compare=False)

    @property
    def is_empty(self) -> bool:
        return not (self.depth or self.in_flight or self.deferred or self.behind_pause)

    @property
    def waiting(self) -> int:
        """Number of messages that are not done, even in a paused channel."""
        return self.unread + self.in_flight + self.deferred

    @property
    def unread(self) -> int:
        """The depth that nsqd reports, even of a paused channel."""
        return self.depth + self.behind_pause


@dataclass(eq=False)
class _Nsqd:
    """An nsqd of the query, and the state of the questions to it."""

    http: NsqdHTTP
    # host:port of the TCP protocol, empty until /info has told it.
    tcp: str
    # Topics that the query reads from it.
    topics: list[str] = field(default_factory=list)
    # Number of questions in a row without an answer.
    failures: int = 0
    # Monotonic time before which it is not asked.
    rest_until: float = 0.0


class _Depth(NamedTuple):
    """The answer of an nsqd: its TCP address, and the backlog of each topic in question."""

    tcp: str
    backlogs: dict[str, Backlog]


class _Producer(NamedTuple):
    """An item of nsqlookupd's list: the addresses of an nsqd, and a topic of it."""

    tcp: str
    http: str
    topic: str


class _Round(NamedTuple):
    """The answers of all nsqlookupds to one question.

    ``missing``: nsqlookupds that have not answered. ``listed``: all sources in the answers.
    ``problems``: the errors.
    """

    missing: set[LookupdHTTP]
    listed: set[Source]
    problems: list[str]


class Depths:
    """Questions to a cluster. Call ``start()`` once, then ``look()`` often, then ``close()``."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._lookupds = [
            LookupdHTTP(url, authorization=options.lookupd_authorization, **options.http_options())
            for url in options.lookupds
        ]
        self._named = [
            _Nsqd(self._client(http), tcp, list(options.topics)) for tcp, http in options.nsqds
        ]
        # The nsqds that nsqlookupd listed, by TCP address.
        self._found: dict[str, _Nsqd] = {}
        # Monotonic time of the next round of questions to nsqlookupd.
        self._lookup_at = 0.0
        self._round = _Round(set(), set(), [])
        # The nsqds that have been asked and did not answer yet.
        self._asked: set[_Nsqd] = set()
        # The nsqds whose answer the current look waits for.
        self._awaited: set[_Nsqd] = set()
        # Questions under way, and answers that nobody has taken yet.
        self._calls: Calls[_Nsqd | LookupdHTTP, Any] = Calls(Workers(at_a_time=_THREADS))
        # The last backlog of each source.
        self._seen: dict[Source, Backlog] = {}
        # The error of each server that did not answer the last time, by URL.
        self._problems: dict[str, str] = {}
        # True while a question creates missing topics and channels. False during the first look,
        # which only asks which topics exist. Changes only while no question is under way.
        self._creates = True
        # Topics that some server had in the first look. Tasks of questions add to it.
        self._there: set[str] = set()

    def close(self) -> None:
        clients = (*self._lookupds, *(nsqd.http for nsqd in {*self._nsqds(), *self._asked}))
        for client in clients:
            client.cut()
        self._calls.drop()
        self._calls.join()
        for client in clients:
            client.close()

    def start(self, *, must_exist: bool = False) -> None:
        """Find the nsqds, and create the topics and channels that are missing.

        ``must_exist``: True if a topic that no server has is an error (NoSuchTopic) and is not
        created; otherwise it is created with a WARNING. Raises ConnectionLost, with each address
        and its error, if no nsqlookupd or no nsqd answers.
        """
        self._creates = False
        self._look_everywhere()
        self._creates = True
        unknown = sorted(set(self._options.topics) - self._there)
        # A server that did not answer may have the topic, so then nothing is said.
        if unknown and not self._problems:
            if must_exist:
                raise NoSuchTopic(self._nobody_has(unknown))
            log.warning("%s; it is created now", self._nobody_has(unknown))
        self._look_everywhere()

    def _look_everywhere(self) -> None:
        """Ask all servers and wait for their answers. Raises ConnectionLost as ``start``."""
        if self._lookupds:
            self._begin_round()
            self._gather(whole=True)
            problems = self._round.problems
            if len(problems) == len(self._lookupds):
                raise ConnectionLost(
                    f"option 'lookupdHttpAddresses': no nsqlookupd answers ({'; '.join(problems)});"
                    " set it to host:port of their HTTP API, 4161 unless changed"
                )
        self.look(whole=True)
        if self._nsqds() and all(nsqd.failures for nsqd in self._nsqds()):
            raise ConnectionLost(self._no_nsqd())

    def _nobody_has(self, topics: list[str]) -> str:
        """Return a sentence about topics that no server has, with similar names."""
        names: set[str] = set()
        # Similar names are only a hint, so an error while asking for them does no harm.
        with contextlib.suppress(NSQError):
            for lookupd in self._lookupds:
                names.update(lookupd.topics())
            for nsqd in self._nsqds():
                stats = nsqd.http.stats(include_clients=False, include_mem=False)
                names.update(entry.topic_name for entry in stats.topics)
        near = [name for topic in topics for name in get_close_matches(topic, sorted(names), n=3)]
        hint = f" (near: {', '.join(dict.fromkeys(near))})" if near else ""
        asked = " and no nsqlookupd" if self._lookupds else ""
        return (
            f"no nsqd{asked} has the topic {', '.join(topics)}{hint}: look at option 'subscribe',"
            f" or create it by 'gnsqsync topic create {topics[0]}'"
        )

    def look(self, *, whole: bool = False) -> dict[Source, Backlog | None]:
        """Return the depths now, by nsqd and topic; None if the nsqd has not answered.

        All nsqds are asked at the same time. The look does not wait long for a slow nsqd; its
        answer counts in a later look. With ``whole`` the look waits for all answers.
        """
        now = time.monotonic()
        if self._lookupds and now >= self._lookup_at and not self._round.missing:
            self._begin_round()
        self._ask_all(now)
        answers = self._gather(whole)
        seen: dict[Source, Backlog | None] = {}
        for nsqd in self._nsqds():
            backlogs = answers.get(nsqd, {})
            if nsqd.tcp:
                for topic in nsqd.topics:
                    seen[Source(nsqd.tcp, topic)] = backlogs.get(topic)
        self._seen.update((source, backlog) for source, backlog in seen.items() if backlog)
        return seen

    @property
    def is_answer_missing(self) -> bool:
        """True while an nsqd that was asked has not answered."""
        return bool(self._asked)

    def silent(self) -> dict[str, str]:
        """Return the nsqds that did not answer the last time, with the error of each."""
        return {
            nsqd.tcp or nsqd.http.url: self._problems[nsqd.http.url]
            for nsqd in self._nsqds()
            if nsqd.failures
        }

    def report(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return the last depths by topic and nsqd, in the form of a query's progress."""
        shown: dict[str, dict[str, dict[str, int]]] = {topic: {} for topic in self._options.topics}
        for source, backlog in sorted(self._seen.items()):
            shown[source.topic][source.nsqd] = {
                "depth": backlog.depth,
                "in_flight": backlog.in_flight,
                "deferred": backlog.deferred,
            }
        return shown

    def _nsqds(self) -> list[_Nsqd]:
        return [*self._named, *self._found.values()]

    def _client(self, address: str) -> NsqdHTTP:
        return NsqdHTTP(address, timeout=_PATIENCE, **self._options.http_options())

    # -- questions and answers -------------------------------------------------------------------

    def _ask_all(self, now: float) -> None:
        """Ask each nsqd that is not asked now and does not rest, reliable nsqds first."""
        retries = _RETRIES - sum(1 for nsqd in self._asked if nsqd.failures)
        for nsqd in sorted(self._nsqds(), key=lambda nsqd: nsqd.failures):
            if nsqd in self._asked or now < nsqd.rest_until:
                continue
            if nsqd.failures:
                retries -= 1
                if retries < 0:
                    break
            self._asked.add(nsqd)
            self._awaited.add(nsqd)
            self._submit(nsqd, self._ask, nsqd.http, nsqd.tcp, tuple(nsqd.topics))

    def _submit(self, server: _Nsqd | LookupdHTTP, call: Callable[..., Any], *args: Any) -> None:
        """Make this call on a task of its own. ``_gather`` gets the outcome."""
        self._calls.begin(server, partial(call, *args))

    def _gather(self, whole: bool) -> dict[_Nsqd, dict[str, Backlog]]:
        """Take answers until no awaited one is missing. Return the backlogs of the nsqds.

        Gives up after _GRACE seconds without an answer; with ``whole`` only when all have answered.
        """
        found: dict[_Nsqd, dict[str, Backlog]] = {}
        while True:
            try:
                if whole and (self._asked or self._round.missing):
                    server, outcome = self._calls.take(None)
                else:
                    server, outcome = self._calls.take(_GRACE if self._awaited else 0)
            except TimeoutError:
                self._awaited.clear()
                return found
            if isinstance(server, LookupdHTTP):
                self._note_nodes(server, outcome)
            else:
                self._note_depth(server, outcome, found)

    def _note_depth(
        self, nsqd: _Nsqd, outcome: Outcome[_Depth], found: dict[_Nsqd, dict[str, Backlog]]
    ) -> None:
        self._asked.discard(nsqd)
        self._awaited.discard(nsqd)
        try:
            answer = outcome.result()
        except NSQError as error:
            rest = min(_FIRST_REST * 2**nsqd.failures, _LONGEST_REST)
            nsqd.failures += 1
            nsqd.rest_until = time.monotonic() + rest
            # Without topics the nsqd is dropped already: nsqlookupd no longer lists it, and its
            # client was closed during the question.
            if nsqd.topics:
                self._trouble(nsqd.http.url, error)
            return
        nsqd.tcp = answer.tcp
        nsqd.failures = 0
        self._fine(nsqd.http.url)
        found[nsqd] = answer.backlogs

    # -- nsqlookupd ------------------------------------------------------------------------------

    def _begin_round(self) -> None:
        """Ask every nsqlookupd which nsqds have the topics."""
        self._lookup_at = time.monotonic() + self._options.lookupd_poll_interval
        self._round = _Round(set(self._lookupds), set(), [])
        for lookupd in self._lookupds:
            self._submit(lookupd, self._look_up, lookupd)

    def _look_up(self, lookupd: LookupdHTTP) -> list[_Producer]:
        """Return the nsqds that one nsqlookupd lists, and create missing channels there.

        May run on any thread. Raises NSQError.
        """
        producers = []
        for topic in self._options.topics:
            try:
                found = lookupd.lookup(topic)
            except HTTPError as error:
                if error.code != "TOPIC_NOT_FOUND":
                    raise
                found = None
            if found is not None:
                self._there.add(topic)
            if self._creates and (found is None or self._options.channel not in found.channels):
                # An nsqd that gets the topic later asks nsqlookupd for the channels to make.
                lookupd.create_topic(topic)
                lookupd.create_channel(topic, self._options.channel)
            for producer in found.producers if found else ():
                address = str(producer.tcp_address)
                producers.append(_Producer(address, producer.http_address, topic))
        return producers

    def _note_nodes(self, lookupd: LookupdHTTP, outcome: Outcome[list[_Producer]]) -> None:
        missing, listed, problems = self._round
        missing.discard(lookupd)
        try:
            producers = outcome.result()
        except NSQError as error:
            self._trouble(lookupd.url, error)
            problems.append(str(error))
        else:
            self._fine(lookupd.url)
            for tcp, http, topic in producers:
                if tcp not in self._found:
                    self._found[tcp] = _Nsqd(self._client(http), tcp)
                if topic not in self._found[tcp].topics:
                    self._found[tcp].topics.append(topic)
                listed.add(Source(tcp, topic))
        if not missing and not problems:
            self._drop_all_but(listed)

    def _drop_all_but(self, listed: set[Source]) -> None:
        """Forget nsqds that no nsqlookupd lists and that have no messages left for us."""
        for tcp, nsqd in list(self._found.items()):
            for topic in list(nsqd.topics):
                source = Source(tcp, topic)
                seen = self._seen.get(source)
                drained = seen is None or seen.is_empty
                if source not in listed and (drained or nsqd.failures):
                    nsqd.topics.remove(topic)
                    self._seen.pop(source, None)
            if not nsqd.topics:
                self._found.pop(tcp).http.close()

    # -- nsqd ------------------------------------------------------------------------------------

    def _ask(self, http: NsqdHTTP, tcp: str, topics: tuple[str, ...]) -> _Depth:
        """Return the depths of one nsqd, and create missing channels there.

        May run on any thread. Raises NSQError.
        """
        if not tcp:
            tcp = self._tcp_address(http)
        asked_at = time.monotonic()
        stats = http.stats(
            topics[0] if len(topics) == 1 else None,
            self._options.channel,
            include_clients=False,
            include_mem=False,
        )
        found = {
            entry.topic_name: _backlog(channel, stats.start_time, asked_at)
            for entry in stats.topics
            for channel in entry.channels
            if entry.topic_name in topics and channel.channel_name == self._options.channel
        }
        self._there.update(entry.topic_name for entry in stats.topics)
        for topic in set(topics) - found.keys():
            if self._creates:
                http.create_topic(topic)
                http.create_channel(topic, self._options.channel)
            found[topic] = Backlog(0, 0, 0, born=stats.start_time, asked_at=asked_at)
        return _Depth(tcp, found)

    @staticmethod
    def _tcp_address(http: NsqdHTTP) -> str:
        """Return the TCP address with the user's host, which we can reach.

        A broadcast address may be out of reach from here.
        """
        info = http.info()
        host = urlsplit(http.url).hostname or info.broadcast_address
        return f"[{host}]:{info.tcp_port}" if ":" in host else f"{host}:{info.tcp_port}"

    def _no_nsqd(self) -> str:
        reasons = "; ".join(f"nsqd {name}: {reason}" for name, reason in self.silent().items())
        if self._named:
            hints = "".join(map(self._is_http_port, self._named))
            return (
                f"no nsqd answers over HTTP ({reasons}); {hints}set option 'nsqdHttpAddresses' to"
                " host:port of their HTTP API, 4151 unless changed"
            )
        return (
            f"no nsqd that nsqlookupd names answers over HTTP ({reasons}); set each nsqd's"
            " --broadcast-address to a name that the driver and the executors can reach, or name"
            " the nsqds with options 'nsqdTcpAddresses' and 'nsqdHttpAddresses'"
        )

    def _is_http_port(self, nsqd: _Nsqd) -> str:
        """Return a hint if the user gave an HTTP port as TCP address, else an empty text.

        In that case the wrong HTTP port was asked, namely the next one.
        """
        if not nsqd.tcp or nsqd.tcp.startswith("unix:"):
            return ""
        with self._client(nsqd.tcp) as client:
            try:
                port = client.info().tcp_port
            except NSQError:
                return ""
        return f"{nsqd.tcp} is an HTTP port, and the TCP port of that nsqd is {port}; "

    # -- log lines -------------------------------------------------------------------------------

    def _trouble(self, url: str, error: NSQError) -> None:
        """Log the first error of a server; later errors only replace the text."""
        # The parameters of the request are cut off, because they do not help a reader.
        problem = re.sub(r"\?\S*:", ":", str(error))
        if url not in self._problems:
            log.warning("%s cannot be asked, so its messages count as none: %s", url, problem)
        self._problems[url] = problem

    def _fine(self, url: str) -> None:
        if self._problems.pop(url, None) is not None:
            log.warning("%s answers again", url)


def _backlog(channel: ChannelStats, born: int, asked_at: float) -> Backlog:
    waiting = channel.depth + channel.in_flight_count + channel.deferred_count
    return Backlog(
        # A paused topic does not matter: its channels get no new messages, but deliver those that
        # they have.
        0 if channel.paused else channel.depth,
        channel.in_flight_count,
        channel.deferred_count,
        channel.message_count - waiting,
        behind_pause=channel.depth if channel.paused else 0,
        returned=channel.requeue_count + channel.timeout_count,
        born=born,
        asked_at=asked_at,
    )
