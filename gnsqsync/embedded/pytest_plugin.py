"""pytest fixtures that start an nsqd, an nsqlookupd or a cluster for one test, and read messages.

Every pytest run loads this module if gnsqsync is installed. So it imports only the standard library
and pytest before a test uses a fixture.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gnsqsync import Message
    from gnsqsync.admin.process import Nsqadmin
    from gnsqsync.embedded.process import Nsqd, Nsqlookupd

_MARKERS = (
    "nsqd(**flags): flags of the nsqd that the fixtures nsqd and nsq_cluster start, with _ for -",
    "nsqlookupd(**flags): the same for nsqlookupd",
    "nsq_cluster(nsqds=2, admin=False): number of nsqds that the fixture nsq_cluster starts; with"
    " admin=True also an nsqadmin",
)


class NsqCluster:
    """Several nsqds that are registered with one nsqlookupd.

    ``Reader`` and ``Writer`` take the tuples of addresses.

    Attributes:
        nsqds: The running nsqds.
        lookupd: The running nsqlookupd.
        admin: The running nsqadmin; None unless the marker asks for it.
    """

    def __init__(
        self, nsqds: tuple[Nsqd, ...], lookupd: Nsqlookupd, admin: Nsqadmin | None = None
    ) -> None:
        self.nsqds = nsqds
        self.lookupd = lookupd
        self.admin = admin

    @property
    def nsqd_tcp_addresses(self) -> tuple[str, ...]:
        """``host:port`` of each nsqd's TCP listener."""
        return tuple(nsqd.tcp_address for nsqd in self.nsqds)

    @property
    def nsqd_http_addresses(self) -> tuple[str, ...]:
        """``host:port`` of each nsqd's HTTP listener."""
        return tuple(nsqd.http_address for nsqd in self.nsqds)

    @property
    def lookupd_http_addresses(self) -> tuple[str, ...]:
        """``host:port`` of the nsqlookupd's HTTP listener, as a tuple with one item."""
        return (self.lookupd.http_address,)


class NsqMessages:
    """The fixture ``nsq_messages``: a function that reads the messages of this test's nsqds.

    Args:
        nsqds: The nsqds to read from.
    """

    _CHANNEL = "nsq_messages"

    def __init__(self, nsqds: tuple[Nsqd, ...]) -> None:
        self._nsqds = nsqds

    def __call__(
        self, topic: str, count: int | None = None, *, timeout: float = 10.0
    ) -> list[Message]:
        """Return the messages of ``topic`` that were not returned before.

        The first call makes a channel. If the code under test consumes the topic as well, call this
        once before anything is published.

        Args:
            topic: Name of the topic.
            count: Number of messages to wait for; more may come. None means the messages that nsqd
                has now: each whose publish has returned, except deferred ones.
            timeout: Seconds until the call gives up.

        Raises:
            AssertionError: Fewer messages came in time.
        """
        from gnsqsync import Reader

        nsqds = [nsqd for nsqd in self._nsqds if nsqd.is_running]
        found: list[Message] = []
        deadline = time.monotonic() + timeout
        with Reader(
            topic,
            self._CHANNEL,
            nsqd_tcp_addresses=[nsqd.tcp_address for nsqd in nsqds],
            max_in_flight=200,
            max_attempts=0,
        ) as reader:
            for batch in reader.batches(200, 0.02, 0.0):
                reader.finish(batch)
                found += batch
                if count is None:
                    # The Reader has sent the answers to a batch before it returns the next one.
                    if not batch and all(self._is_read(nsqd, topic) for nsqd in nsqds):
                        return found
                elif len(found) >= count:
                    return found
                if time.monotonic() > deadline:
                    break
        bodies = ", ".join(repr(message.body) for message in found)
        raise AssertionError(
            f"{len(found)} messages of {topic} came in {timeout} s: [{bodies}]; expected"
            f" {'all that nsqd has' if count is None else count}"
        )

    def _is_read(self, nsqd: Nsqd, topic: str) -> bool:
        """Return True if our channel exists and nothing is left for it."""
        from gnsqsync import NsqdHTTP

        with NsqdHTTP(nsqd.http_address) as http:
            for found in http.stats(topic).topics:
                for channel in found.channels:
                    if channel.channel_name == self._CHANNEL:
                        return not found.depth + channel.depth + channel.in_flight_count
        return False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("nsq").addoption(
        "--nsq-server",
        choices=("embedded", "real"),
        default="embedded",
        help="servers that the fixtures nsqd, nsqlookupd and nsq_cluster start: gnsqsync's embedded"
        " ones, or the real ones from the folder NSQ_BIN or from PATH (default: embedded)",
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Drop the messages that Django's integration captured in the test before.

    A test may run without Django's TestCase, which would drop them.
    """
    writers = sys.modules.get("gnsqsync.django.writers")
    if writers is not None:
        writers.forget_captured()


def _binary(config: pytest.Config, program: str) -> str | None:
    """Return None for the embedded server, else the real program's path. UsageError if missing."""
    if config.getoption("--nsq-server") == "embedded":
        return None
    folder = os.environ.get("NSQ_BIN")
    found = shutil.which(program, path=folder) if folder else shutil.which(program)
    if found is None:
        where = f"in NSQ_BIN={folder}" if folder else "on PATH, and NSQ_BIN is not set"
        raise pytest.UsageError(f"--nsq-server=real: no {program} {where}")
    return found


def _marker(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    """Return the keywords of all markers ``name`` on the test. The closest marker wins."""
    keywords: dict[str, Any] = {}
    for marker in request.node.iter_markers(name):
        keywords = {**marker.kwargs, **keywords}
    return keywords


@pytest.fixture
def nsqlookupd(request: pytest.FixtureRequest) -> Iterator[Nsqlookupd]:
    """A running nsqlookupd for this test (``.tcp_address``, ``.http_address``)."""
    from gnsqsync.embedded.process import Nsqlookupd

    binary = _binary(request.config, "nsqlookupd")
    with Nsqlookupd(binary=binary, **_marker(request, "nsqlookupd")) as server:
        yield server


@pytest.fixture
def nsqd(request: pytest.FixtureRequest) -> Iterator[Nsqd]:
    """A running nsqd for this test, on its own (``.tcp_address``, ``.http_address``)."""
    from gnsqsync.embedded.process import Nsqd

    with Nsqd(binary=_binary(request.config, "nsqd"), **_marker(request, "nsqd")) as server:
        yield server


@pytest.fixture
def nsq_cluster(request: pytest.FixtureRequest, nsqlookupd: Nsqlookupd) -> Iterator[NsqCluster]:
    """Two nsqds, or the number in the marker, registered with one nsqlookupd.

    ``@pytest.mark.nsq_cluster(admin=True)`` adds an nsqadmin, which needs the extra ``admin``.
    """
    from gnsqsync.embedded.process import Nsqd

    binary = _binary(request.config, "nsqd")
    flags = _marker(request, "nsqd")
    wanted = _marker(request, "nsq_cluster")
    unknown = wanted.keys() - {"nsqds", "admin"}
    if unknown:
        raise pytest.UsageError(
            f"nsq_cluster has no {', '.join(sorted(unknown))}; it has nsqds and admin"
        )
    with contextlib.ExitStack() as stack:
        nsqds = tuple(
            stack.enter_context(
                Nsqd(binary=binary, lookupd_tcp_addresses=nsqlookupd.tcp_address, **flags)
            )
            for _ in range(wanted.get("nsqds", 2))
        )
        admin = None
        if wanted.get("admin"):
            from gnsqsync.admin.process import Nsqadmin

            admin = stack.enter_context(
                Nsqadmin(
                    binary=_binary(request.config, "nsqadmin"),
                    lookupd_http_addresses=nsqlookupd.http_address,
                )
            )
        yield NsqCluster(nsqds, nsqlookupd, admin)


@pytest.fixture
def nsq_messages(request: pytest.FixtureRequest) -> NsqMessages:
    """``nsq_messages(topic)`` returns the messages published to the servers of this test.

    The servers are those of ``nsq_cluster`` and ``nsqd``, if the test uses these fixtures.
    Otherwise this fixture starts an nsqd.
    """
    nsqds: tuple[Nsqd, ...] = ()
    if "nsq_cluster" in request.fixturenames:
        nsqds += request.getfixturevalue("nsq_cluster").nsqds
    if not nsqds or "nsqd" in request.fixturenames:
        nsqds += (request.getfixturevalue("nsqd"),)
    return NsqMessages(nsqds)
