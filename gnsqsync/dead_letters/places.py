"""The nsqds that have letters, and the number of letters at each, asked over HTTP.

Connects to no channel. An nsqd whose HTTP port does not answer counts as a place with an unknown
number of letters.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from gnsqsync.addresses import Address
from gnsqsync.cluster.asking import Outcomes, ask_all
from gnsqsync.discovery.lookups import Lookups
from gnsqsync.errors import HTTPError, NSQError
from gnsqsync.options import https_options
from gnsqsync.runtime import Runtime
from gnsqsync.stats import counted

if TYPE_CHECKING:
    from gnsqsync.http.clients import ChannelStats, NsqdHTTP, TopicStats

__all__ = ["CHANNEL", "OLD_CHANNEL", "Place", "Places"]

# The channel through which every tool takes dead letters.
CHANNEL = "dead_letters"
# The channel that nsqadmin's button used before. Letters may still lie there.
OLD_CHANNEL = "send-back"
# Seconds until an HTTP request to an nsqd times out.
_PATIENCE = 3.0

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """An nsqd that has the topic, by its TCP address, and the channel to take letters from.

    ``waiting``: number of letters there; None if unknown.
    """

    nsqd: Address
    channel: str
    waiting: int | None


class Places:
    """The search for the nsqds that have ``channel`` of ``topic``.

    ``problems``: sentences about servers and letters that are left out. ``elsewhere``: number of
    letters that wait in other channels of the topic, by channel.
    """

    def __init__(self, topic: str, channel: str, lookups: Lookups, runtime: Runtime) -> None:
        self.problems: list[str] = []
        self.elsewhere: dict[str, int] = {}
        self._topic = topic
        self._channel = channel
        self._lookups = lookups
        self._runtime = runtime

    def find(self, nsqds: Sequence[Address], http: Sequence[str]) -> list[Place]:
        """Return the places among all nsqds that are given or that nsqlookupd lists.

        ``nsqds``: TCP addresses; the port after each is asked. ``http``: HTTP addresses.
        """
        # The HTTP address of each nsqd by TCP address; None if unknown.
        guessed = self._ask({address: partial(self._guess, address) for address in nsqds})
        found: dict[Address, str | None] = {**guessed.answers}
        ports = self._ask({url: partial(self._tcp_port, url) for url in http})
        for url, port in ports.answers.items():
            # The host of the HTTP address can be reached.
            found[Address(urlsplit(url).hostname or "", port)] = url
        listed = self._ask({url: partial(self._look_up, url) for url in self._lookups.urls})
        for producers in listed.answers.values():
            for address, asked in producers:
                found.setdefault(address, asked)
        self.problems += map(str, [*ports.failures.values(), *listed.failures.values()])
        answers = self._ask(
            {address: partial(self._stats, asked) for address, asked in found.items() if asked}
        )
        places = []
        missing = []
        for address in found:
            stats = answers.answers.get(address)
            if stats is None and address in answers.answers:
                missing.append(str(address))
                continue
            channel = self._channel if stats is None else self._channel_at(address, stats)
            waiting = None if stats is None else self._waiting(address, channel, stats)
            if stats is None or waiting is not None:
                places.append(Place(address, channel, waiting))
        if not places and not self.problems:
            asked_of = ", ".join([*missing, *self._lookups.shown])
            self.problems.append(f"no such topic {self._topic!r} (asked: {asked_of})")
        return places

    def _ask(self, calls: Mapping[K, Callable[[], T]]) -> Outcomes[K, T]:
        return ask_all(calls, runtime=self._runtime)

    def _client(self, address: str) -> NsqdHTTP:
        # The import is here, so that this package loads requests only when it is used.
        from gnsqsync.http.clients import NsqdHTTP

        return NsqdHTTP(
            address,
            timeout=_PATIENCE,
            connect_timeout=_PATIENCE,
            runtime=self._runtime,
            **https_options(self._lookups.options),
        )

    def _guess(self, address: Address) -> str | None:
        """Return the HTTP address with the next port, or None if the nsqd is not there."""
        if address.path or address.port == 65535:
            return None
        guess = str(self._lookups.options.dial_address(Address(address.host, address.port + 1)))
        with self._client(guess) as client:
            try:
                return guess if client.info().tcp_port == address.port else None
            except NSQError:
                return None

    def _tcp_port(self, url: str) -> int:
        with self._client(url) as client:
            return client.info().tcp_port

    def _look_up(self, url: str) -> list[tuple[Address, str]]:
        """Return the nsqds that an nsqlookupd lists: TCP address, and HTTP address to ask."""
        with self._lookups.client(url, self._runtime) as client:
            try:
                producers = client.lookup(self._topic).producers
            except HTTPError as error:
                if error.code != "TOPIC_NOT_FOUND":
                    raise
                return []
        options = self._lookups.options
        return [
            (
                producer.tcp_address,
                str(options.dial_address(Address(producer.broadcast_address, producer.http_port))),
            )
            for producer in producers
        ]

    def _stats(self, asked: str) -> TopicStats | None:
        with self._client(asked) as client:
            stats = client.stats(self._topic, include_clients=False, include_mem=False)
        return stats.topics[0] if stats.topics else None

    def _channel_at(self, address: Address, topic: TopicStats) -> str:
        """Return the channel to take letters from at this nsqd. CHANNEL has an older name, too.

        Letters in other channels are noted in ``elsewhere``. If both names exist, the older one is
        left alone: the channels may have copies of the same letters, which would go back twice.
        """
        depths = {each.channel_name: each.depth for each in topic.channels}
        mine = self._channel
        if mine == CHANNEL and CHANNEL not in depths and OLD_CHANNEL in depths:
            mine = OLD_CHANNEL
        for name, depth in depths.items():
            if depth and name != mine:
                self.elsewhere[name] = self.elsewhere.get(name, 0) + depth
        if mine == CHANNEL and depths.get(OLD_CHANNEL) and CHANNEL in depths:
            self._say(
                address,
                f"topic {self._topic!r} also has the channel {OLD_CHANNEL!r} of an older nsqadmin,"
                f" with {counted(depths[OLD_CHANNEL], 'letter')}; some may be copies of those here."
                " Look there by naming it, and delete it in the end",
            )
        return mine

    def _waiting(self, address: Address, channel: str, topic: TopicStats) -> int | None:
        """Return the number of letters; None, with a note in ``problems``, if none can come."""
        channels = {each.channel_name: each for each in topic.channels}
        mine = channels.get(channel)
        if mine is None and channels:
            self._say(
                address,
                f"topic {self._topic!r} has no channel {channel!r}. Its letters wait in"
                f" {_listed(channels)}: name that one",
            )
            return None
        if mine is not None and mine.paused:
            self._say(
                address,
                f"channel {channel!r} of topic {self._topic!r} is paused, so nothing comes"
                f" ({counted(mine.depth, 'letter')} there); unpause it first",
            )
            return None
        in_channel = 0 if mine is None else mine.depth
        if topic.paused and topic.depth:
            self._say(
                address,
                f"topic {self._topic!r} is paused: {counted(topic.depth, 'letter')} in it do not"
                " reach the channel; unpause it first",
            )
            return in_channel or None
        return in_channel + topic.depth

    def _say(self, address: Address, text: str) -> None:
        self.problems.append(f"nsqd {address}: {text}")


def _listed(channels: dict[str, ChannelStats]) -> str:
    return ", ".join(f"{name!r} ({each.depth:,})" for name, each in channels.items())
