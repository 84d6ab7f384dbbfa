"""HTTP clients of the nsqds and nsqlookupds of a cluster, kept by address, and asked side by side.

Knows the addresses and which nsqlookupd lists which nsqd. Must not know what the answers mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar, Unpack

from gnsqsync.addresses import Address, NsqdAddress, parse_address
from gnsqsync.cluster.asking import AT_A_TIME, Outcomes, ask_all
from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.http.clients import LookupdHTTP, NsqdHTTP
from gnsqsync.http.transport import HTTPKeywords

if TYPE_CHECKING:
    from gnsqsync.http.clients import Node

__all__ = ["Found", "Servers", "next_port", "next_ports"]

C = TypeVar("C", bound=NsqdHTTP | LookupdHTTP)
T = TypeVar("T")


def next_port(address: NsqdAddress) -> Address | None:
    """Return nsqd's HTTP address for its TCP address: by default the next port."""
    tcp = parse_address(address)
    return None if tcp.path or tcp.port == 65535 else Address(tcp.host, tcp.port + 1)


def next_ports(addresses: Iterable[NsqdAddress]) -> list[str]:
    """Return ``next_port`` of each address. An address without one stays, so a failure names it."""
    return [str(next_port(address) or address) for address in addresses]


@dataclass(frozen=True, slots=True)
class Found:
    """The nsqds of a cluster, and the answers of its nsqlookupds, by address.

    ``bad``: addresses that cannot be right, which an nsqd may register.
    """

    nsqds: dict[str, NsqdHTTP]
    lookups: Outcomes[str, tuple[Node, ...]]
    bad: dict[str, NSQError]


class Servers:
    """The servers of a cluster: those at fixed addresses, and the nsqds that nsqlookupds list.

    Args:
        nsqds: HTTP addresses of nsqds.
        lookupds: HTTP addresses of nsqlookupds.
        at_a_time: Upper bound of servers that are asked at a time.
        timeout: Seconds for which a server may be silent.
        options: Further keywords of NsqdHTTP and LookupdHTTP. They bound the bytes of an answer.

    Raises:
        ConfigError: An address is not valid.

    Threads:
        One thread at a time.
    """

    def __init__(
        self,
        nsqds: Iterable[str],
        lookupds: Iterable[str],
        *,
        at_a_time: int = AT_A_TIME,
        timeout: float = 5.0,
        **options: Unpack[HTTPKeywords],
    ) -> None:
        self._at_a_time = at_a_time
        self._runtime = options.get("runtime")
        self._new_nsqd = partial(NsqdHTTP, timeout=timeout, **options)
        self._fixed = tuple(dict.fromkeys(nsqds))
        self._nsqds: dict[str, NsqdHTTP] = {}
        self.lookupds: dict[str, LookupdHTTP] = {
            address: LookupdHTTP(address, timeout=timeout, **options) for address in lookupds
        }
        for address in self._fixed:
            self.nsqd(address)

    def close(self) -> None:
        """Close all connections."""
        for client in (*self.lookupds.values(), *self._nsqds.values()):
            client.close()

    def cut(self) -> None:
        """End the calls under way. ``close`` comes next."""
        for client in (*self.lookupds.values(), *self._nsqds.values()):
            client.cut()

    def nsqd(self, address: str) -> NsqdHTTP:
        """Return the client of an nsqd. Raise ConfigError for a bad address."""
        client = self._nsqds.get(address)
        if client is None:
            client = self._nsqds[address] = self._new_nsqd(address)
        return client

    def find(self, seconds: float = math.inf) -> Found:
        """Ask all nsqlookupds for their nsqds. Close the clients of nsqds that are gone."""
        lookups = self.ask(self.lookupds, LookupdHTTP.nodes, seconds)
        addresses = dict.fromkeys(self._fixed)
        for nodes in lookups.answers.values():
            addresses.update((node.http_address, None) for node in nodes)
        for address in self._nsqds.keys() - addresses.keys():
            self._nsqds.pop(address).close()
        nsqds: dict[str, NsqdHTTP] = {}
        bad: dict[str, NSQError] = {}
        for address in addresses:
            try:
                nsqds[address] = self.nsqd(address)
            except ConfigError as error:
                bad[address] = error
        return Found(nsqds, lookups, bad)

    def ask(
        self, clients: Mapping[str, C], call: Callable[[C], T], seconds: float = math.inf
    ) -> Outcomes[str, T]:
        """Call ``call`` with each client, side by side, for ``seconds`` at most."""
        return ask_all(
            {address: partial(call, client) for address, client in clients.items()},
            runtime=self._runtime,
            at_a_time=self._at_a_time,
            seconds=seconds,
        )
