"""Several nsqds and one nsqlookupd as the Spark tests and programs use them.

Knows how they are started, filled and counted; knows nothing of Spark.
"""

from __future__ import annotations

import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from gnsqsync import LookupdHTTP, NsqdHTTP, Writer
from gnsqsync.errors import HTTPError
from gnsqsync.http.nsqd_types import ChannelStats
from tests.support.servers import Server, unique
from tests.support.waiting import eventually

Nsqds = Sequence[Server]
# Starts a server: the program, its flags, and a word that tells equal ones apart.
Start = Callable[[str, Sequence[str], str], Server]

_NUMBER = struct.Struct(">q")


def numbered(numbers: Iterable[int], size: int = 8) -> list[bytes]:
    """Bodies of ``size`` bytes that begin with their number, to be counted afterwards."""
    filler = b"x" * (size - _NUMBER.size)
    return [_NUMBER.pack(number) + filler for number in numbers]


def number_of(body: bytes) -> int:
    """The number that numbered() put into a body."""
    return int(_NUMBER.unpack_from(body)[0])


class Cluster:
    """nsqds of one kind that register with one nsqlookupd; shared by the tests of a session."""

    def __init__(self, nsqlookupd: Server, nsqds: Nsqds) -> None:
        self.nsqlookupd = nsqlookupd
        self.nsqds = list(nsqds)

    @classmethod
    def start(cls, start: Start, count: int = 3, flags: Sequence[str] = ()) -> Cluster:
        """``count`` nsqds with these flags, and the nsqlookupd that they register with."""
        nsqlookupd = start("nsqlookupd", (), "spark")
        known = (f"-lookupd-tcp-address={_text(nsqlookupd.tcp_address)}", *flags)
        return cls(nsqlookupd, [start("nsqd", known, f"spark {n}") for n in range(count)])

    @property
    def tcp_addresses(self) -> list[str]:
        """host:port of every nsqd."""
        return [_text(nsqd.tcp_address) for nsqd in self.nsqds]

    @property
    def http_addresses(self) -> list[str]:
        """host:port of every nsqd's HTTP."""
        return [_text(nsqd.http_address) for nsqd in self.nsqds]

    @property
    def lookupd(self) -> str:
        """host:port of the nsqlookupd's HTTP, as ``lookupdHttpAddresses`` wants it."""
        return _text(self.nsqlookupd.http_address)

    def create(self, topic: str, channel: str = "ch") -> None:
        """Make topic and channel on every nsqd, so that what is published next waits for us.

        Returns when nsqlookupd knows of each: an nsqd tells it later than its own caller, and up to
        15 s later if its first connection to it failed.
        """
        for client in self._http():
            client.create_topic(topic)
            client.create_channel(topic, channel)
        with LookupdHTTP(f"http://{self.lookupd}") as lookupd:
            eventually(
                lambda: _producers(lookupd, topic) == len(self.nsqds),
                describe=lambda: f"{_producers(lookupd, topic)} nsqds have {topic}",
            )

    def publish(self, topic: str, bodies: Iterable[bytes], *, nsqd: int | None = None) -> None:
        """Spread over all nsqds in turns of 1000, or onto one of them."""
        waiting = list(bodies)
        addresses = self.tcp_addresses if nsqd is None else [self.tcp_addresses[nsqd]]
        with Writer(addresses) as writer:
            # Each publish_many then goes to the next of them.
            writer.connect()
            step = max(1, min(1000, -(-len(waiting) // len(addresses))))
            for begin in range(0, len(waiting), step):
                writer.publish_many(topic, waiting[begin : begin + step])

    def depths(self, topic: str, channel: str = "ch") -> list[tuple[int, int, int]]:
        """(depth, in flight, deferred) of the channel on each nsqd that has it."""
        return [(c.depth, c.in_flight_count, c.deferred_count) for c in self._stats(topic, channel)]

    def left(self, topic: str, channel: str = "ch") -> int:
        """Messages that somebody still has to finish."""
        return sum(map(sum, self.depths(topic, channel)))

    def waiting(self, topic: str, channel: str = "ch") -> int:
        """Messages that nsqd would deliver now."""
        return sum(depth for depth, _, _ in self.depths(topic, channel))

    def finished(self, topic: str, channel: str = "ch") -> int:
        """Messages that the channel had and that are done; only right while nothing comes."""
        return sum(
            c.message_count - c.depth - c.in_flight_count - c.deferred_count
            for c in self._stats(topic, channel)
        )

    def pause(self, topic: str, channel: str = "ch") -> None:
        for client in self._http():
            with client:
                client.pause_channel(topic, channel)

    def unpause(self, topic: str, channel: str = "ch") -> None:
        for client in self._http():
            with client:
                client.unpause_channel(topic, channel)

    def clients(self) -> int:
        """Connections that consume, on all topics."""
        return sum(
            channel.client_count
            for client in self._http()
            for found in client.stats().topics
            for channel in found.channels
        )

    def in_flight(self, topic: str, channel: str = "ch") -> Counter[str]:
        """Messages that clients hold now, as the nsqds say, by the address of their host."""
        held: Counter[str] = Counter()
        for found in self._stats(topic, channel):
            for client in found.clients:
                held[client.remote_address.rpartition(":")[0]] += client.in_flight_count
        return +held

    def forget(self, topics: Iterable[str]) -> None:
        """Delete these topics wherever they are."""
        for client in self._http():
            here = {topic.topic_name for topic in client.stats().topics}
            for topic in here & set(topics):
                client.delete_topic(topic)

    def _stats(self, topic: str, channel: str) -> Iterator[ChannelStats]:
        for client in self._http():
            for found in client.stats(topic=topic, channel=channel).topics:
                yield from found.channels

    def _http(self) -> list[NsqdHTTP]:
        return [NsqdHTTP(f"http://{address}") for address in self.http_addresses]


class OwnCluster:
    """A Cluster for a program or for one test alone; a context manager that ends its servers."""

    def __init__(
        self,
        kind: str = "real",
        count: int = 3,
        flags: Sequence[str] = (),
        make: Callable[[str, str, Sequence[str]], Server] = Server,
    ) -> None:
        self._kind = kind
        self._count = count
        self._flags = flags
        self._make = make
        self._servers: list[Server] = []

    def __enter__(self) -> Cluster:
        try:
            return Cluster.start(self._start, self._count, self._flags)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.kill()  # a clean stop would write what is left to disk
            server.discard()

    def _start(self, program: str, flags: Sequence[str], _: str) -> Server:
        server = self._make(self._kind, program, flags)
        self._servers.append(server)
        return server.start()


def fresh_topic(prefix: str = "spark") -> str:
    """A topic that nobody has used."""
    return unique(prefix)


def scratch(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """A folder that ends with the program."""
    return tempfile.TemporaryDirectory(prefix=f"gnsqsync-{prefix}-")


def _producers(lookupd: LookupdHTTP, topic: str) -> int:
    """Number of nsqds that nsqlookupd names for the topic."""
    try:
        return len(lookupd.lookup(topic).producers)
    except HTTPError:
        return 0


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
