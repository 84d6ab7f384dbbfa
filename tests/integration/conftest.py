"""What the integration tests share: a Writer and Readers that end with the test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gnsqsync import NsqdHTTP, Reader, Writer
from gnsqsync.embedded import Nsqd
from tests.support import realnsq
from tests.support.servers import ROOT, Server, Site, unique
from tests.support.worlds import Clients, client_fixture


def address(server: Server) -> str:
    host, port = server.tcp_address
    return f"{host}:{port}"


def url(server: Server) -> str:
    host, port = server.http_address
    return f"http://{host}:{port}"


class Client(Clients):
    """Readers and Writers beside servers."""

    grace = 2.0

    def writer(self, *servers: Server, **options: Any) -> Writer:
        addresses = [address(s) for s in servers]
        return self.keep(Writer(addresses, runtime=self.world.runtime, **options))

    def reader(self, topic: str, handler: Any = None, *servers: Server, **options: Any) -> Reader:
        options.setdefault("channel", "ch")
        channel = options.pop("channel")
        if servers:
            options["nsqd_tcp_addresses"] = [address(s) for s in servers]
        return self.keep(Reader(topic, channel, handler, runtime=self.world.runtime, **options))

    def consume(self, topic: str, handler: Any, *servers: Server, **options: Any) -> Reader:
        """A Reader that has started."""
        reader = self.reader(topic, handler, *servers, **options)
        reader.start(block=False)
        return reader


client = client_fixture(Client)


@pytest.fixture
def nsqd(site: Site) -> Server:
    """An nsqd with default flags, shared by all tests."""
    return site.nsqd()


@pytest.fixture(scope="module")
def nsqd_of_file() -> Iterator[Nsqd]:
    """An embedded nsqd, shared by the tests of a file."""
    with Nsqd() as server:
        yield server


@pytest.fixture
def emptied_nsqd(nsqd_of_file: Nsqd) -> Nsqd:
    """The nsqd of the file without the topics of earlier tests, for topics with fixed names."""
    with NsqdHTTP(nsqd_of_file.http_address) as http:
        for topic in http.stats().topics:
            http.delete_topic(topic.topic_name)
    return nsqd_of_file


@pytest.fixture
def topic() -> str:
    return unique("topic")


class LongHandler:
    """The program tests.support.longhandler beside an nsqd of its own."""

    def __init__(self) -> None:
        self._nsqd = Server("real", "nsqd").start()
        self.http_address = "{}:{}".format(*self._nsqd.http_address)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.longhandler", address(self._nsqd), "65"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self) -> Any:
        out, err = self._process.communicate(timeout=110)
        assert self._process.returncode == 0, err
        return json.loads(out)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._nsqd.discard()


def _uses_long_handler(item: pytest.Item) -> bool:
    return item.path.name == "test_long_handler.py"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The test of the long handler collects what happened beside all the others."""
    items.sort(key=_uses_long_handler)


@pytest.fixture(scope="session", autouse=True)
def long_handler(request: pytest.FixtureRequest) -> Iterator[LongHandler | None]:
    """Autouse, so that it starts with the first of these tests; None where nobody will ask."""
    if not any(map(_uses_long_handler, request.session.items)):
        yield None
        return
    try:
        realnsq.find_or_build()
    except realnsq.Unavailable:
        yield None  # the test itself is skipped, or fails in CI
        return
    running = LongHandler()
    yield running
    running.close()
