"""What the integration tests share: a Writer and Readers that end with the test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gnsqsync import Reader, Writer
from gnsqsync.errors import NSQError
from tests.support.servers import Server, Site, unique
from tests.support.worlds import World


def address(server: Server) -> str:
    host, port = server.tcp_address
    return f"{host}:{port}"


def url(server: Server) -> str:
    host, port = server.http_address
    return f"http://{host}:{port}"


class Client:
    """Makes Readers and Writers of one world and closes what a test leaves open."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._open: list[Any] = []

    def writer(self, *servers: Server, **options: Any) -> Writer:
        writer = Writer([address(s) for s in servers], runtime=self.world.runtime, **options)
        self._open.append(writer)
        return writer

    def reader(self, topic: str, handler: Any = None, *servers: Server, **options: Any) -> Reader:
        options.setdefault("channel", "ch")
        channel = options.pop("channel")
        if servers:
            options["nsqd_tcp_addresses"] = [address(s) for s in servers]
        reader = Reader(topic, channel, handler, runtime=self.world.runtime, **options)
        self._open.append(reader)
        return reader

    def consume(self, topic: str, handler: Any, *servers: Server, **options: Any) -> Reader:
        """A Reader that has started."""
        reader = self.reader(topic, handler, *servers, **options)
        reader.start(block=False)
        return reader

    def close(self) -> None:
        for thing in self._open:
            if isinstance(thing, Writer):
                thing.close(2.0)
            elif thing._run is not None:
                thing.stop(2.0)
                try:
                    assert thing.join(20.0) is not None, f"{thing} did not stop"
                except NSQError:
                    pass  # it ended by itself; the test has seen that already


@pytest.fixture
def client(world: World) -> Iterator[Client]:
    client = Client(world)
    yield client
    client.close()


@pytest.fixture
def nsqd(site: Site) -> Server:
    """An nsqd with default flags, shared by all tests."""
    return site.nsqd()


@pytest.fixture
def topic() -> str:
    return unique("topic")
