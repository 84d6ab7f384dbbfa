"""Creation of a topic and its channel before the first message. Knows addresses and deadlines.

nsqd copies a message to the channels that exist at that moment (docs/protocol/publishing#channels).
A consumer whose channel is created after the first message of a new nsqd may miss that message.

The nsqlookupds are told first. The given nsqds and those that are listed follow: by HTTP, or by a
SUB if HTTP fails.

Surprise: a SUB is harmless. It creates topic and channel, and without RDY no message comes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gnsqsync.addresses import Address
from gnsqsync.cluster.asking import ask_all
from gnsqsync.connection.opening import subscribe_once
from gnsqsync.errors import ConfigError, ConnectionLost, HTTPError, NSQError
from gnsqsync.foreign import ends_worker, repr_of
from gnsqsync.options import https_options
from gnsqsync.reader.options import ReaderSetup
from gnsqsync.runtime import Runtime

if TYPE_CHECKING:
    from gnsqsync.http.clients import LookupdHTTP, Producer

__all__ = ["ChannelMaker"]

log: logging.Logger = logging.getLogger("gnsqsync.reader")


class ChannelMaker:
    """Maker of a Reader's topic and channel at its nsqlookupds and nsqds, side by side."""

    def __init__(self, setup: ReaderSetup, runtime: Runtime, timeout: float) -> None:
        if setup.channel.endswith("#ephemeral"):
            raise ConfigError(
                f"channel {setup.channel!r} lives only as long as it has consumers;"
                " it cannot be made before them"
            )
        self._setup = setup
        self._runtime = runtime
        self._timeout = timeout
        self._deadline = runtime.now() + timeout

    def run(self) -> None:
        """Create them everywhere. Raises ConnectionLost with all failures if a place failed."""
        setup = self._setup
        producers: dict[Address, Producer] = {}
        # Made on this thread, so that an error of a user's lookupd_session is raised as it is.
        lookupds = [setup.lookups.client(url, self._runtime) for url in setup.lookups.urls]
        problems = self._each(lookupds, lambda lookupd: self._at_lookupd(lookupd, producers))
        # A single nsqlookupd is enough: a new nsqd asks all of them for the channels of a topic.
        if len(problems) < len(lookupds):
            for problem in problems:
                log.warning("%s: one nsqlookupd was not told: %s", setup.name, problem)
            problems = []
        problems += self._each(setup.nsqds, self._subscribe)
        others = [p for address, p in producers.items() if address not in setup.nsqds]
        problems += self._each(others, self._at_nsqd)
        if problems:
            raise ConnectionLost(
                f"{setup.name} could not be made everywhere: {'; '.join(map(str, problems))}"
            )

    def _each(self, places: Sequence[Any], make: Callable[[Any], None]) -> list[NSQError]:
        """Call ``make`` for all places at once. Return what failed."""

        def at(place: Any) -> None:
            try:
                make(place)
            except NSQError:
                raise
            except BaseException as error:
                # A lookupd_session is the user's code, and may raise anything.
                if ends_worker(error):
                    raise
                raise ConnectionLost(repr_of(error)) from error

        made = ask_all(
            {number: partial(at, place) for number, place in enumerate(places)},
            runtime=self._runtime,
            at_a_time=len(places),
            seconds=self._left,
        )
        problems = [error for key, error in made.failures.items() if key not in made.late]
        if made.late:
            problems.append(
                ConnectionLost(
                    f"{len(made.late)} of {len(places)} were not done in {self._timeout:g} s"
                )
            )
        return problems

    @property
    def _left(self) -> float:
        return max(0.001, self._deadline - self._runtime.now())

    def _at_lookupd(self, lookupd: LookupdHTTP, producers: dict[Address, Producer]) -> None:
        setup = self._setup
        with lookupd:
            lookupd.create_channel(setup.topic, setup.channel)
            for producer in lookupd.lookup(setup.topic).producers:
                producers[producer.tcp_address] = producer

    def _at_nsqd(self, producer: Producer) -> None:
        # Imported here, so that a Reader without nsqlookupds does not load requests.
        from gnsqsync.http.clients import NsqdHTTP

        setup = self._setup
        try:
            address = setup.options.dial_address(
                Address(producer.broadcast_address, producer.http_port)
            )
            tls = https_options(setup.options)
            with NsqdHTTP(address, timeout=self._left, runtime=self._runtime, **tls) as nsqd:
                nsqd.create_topic(setup.topic)
                nsqd.create_channel(setup.topic, setup.channel)
        except (ConnectionLost, HTTPError) as error:
            # The HTTP port may be firewalled or want TLS. The TCP port must be open anyway.
            log.debug("%s: %s; trying SUB", setup.name, error)
            self._subscribe(producer.tcp_address)

    def _subscribe(self, address: Address) -> None:
        """Subscribe for a moment: SUB creates topic and channel. Without RDY no message comes."""
        setup = self._setup
        subscribe_once(
            address,
            setup.options,
            self._runtime,
            topic=setup.topic,
            channel=setup.channel,
            timeout=self._left,
        )
