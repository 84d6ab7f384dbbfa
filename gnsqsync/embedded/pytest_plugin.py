"""pytest fixtures that start an nsqd, an nsqlookupd or several of them for one test, and read them.

Loaded by every pytest run where gnsqsync is installed: it must import nothing but the standard
library and pytest before a fixture is used.
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
    "nsq_cluster(nsqds=2, admin=False): how many nsqds the fixture nsq_cluster starts, and whether"
    " an nsqadmin",
)


class NsqCluster:
    """Several nsqds that are registered with one nsqlookupd.

    ``nsqds``, ``lookupd`` and ``admin`` are the running servers, ``admin`` None unless the marker
    asks for it; the address tuples are what ``Reader`` and ``Writer`` take.
    """

    def __init__(
        self, nsqds: tuple[Nsqd, ...], lookupd: Nsqlookupd, admin: Nsqadmin | None = None
    ) -> None:
        self.nsqds = nsqds
        self.lookupd = lookupd
        self.admin = admin

    @property
    def nsqd_tcp_addresses(self) -> tuple[str, ...]:
        """host:port of each nsqd's TCP listener."""
        return tuple(nsqd.tcp_address for nsqd in self.nsqds)

    @property
    def nsqd_http_addresses(self) -> tuple[str, ...]:
        """host:port of each nsqd's HTTP listener."""
        return tuple(nsqd.http_address for nsqd in self.nsqds)

    @property
    def lookupd_http_addresses(self) -> tuple[str, ...]:
        """host:port of the nsqlookupd's HTTP listener, as a tuple of one."""
        return (self.lookupd.http_address,)


class NsqMessages:
    """Reads the messages that were published to the nsqds of this test; the fixture
    ``nsq_messages``."""

    _CHANNEL = "nsq_messages"

    def __init__(self, nsqds: tuple[Nsqd, ...]) -> None:
        self._nsqds = nsqds

    def __call__(
        self, topic: str, count: int | None = None, *, timeout: float = 10.0
    ) -> list[Message]:
        """Messages of ``topic`` that were not returned before; each has ``body`` and ``json()``.

        Without ``count``: the messages that nsqd has now, so all whose publish has returned, but
        not deferred ones. With it: as soon as there are that many or more. AssertionError after
        ``timeout`` seconds. The first call makes a channel; if the code under test consumes the
        topic as well, call it once before anything is published.
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
                    # The answers to a batch have left when the next one is asked for.
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
        """Whether our channel is there, and nothing is left for it."""
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
        help="what the fixtures nsqd, nsqlookupd and nsq_cluster start: gnsqsync's embedded"
        " servers, or the real ones from the folder NSQ_BIN or from PATH (default: embedded)",
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What Django's integration has captured belongs to one test, also to one without TestCase."""
    writers = sys.modules.get("gnsqsync.django.writers")
    if writers is not None:
        writers.forget_captured()


def _binary(config: pytest.Config, program: str) -> str | None:
    """None for the embedded server, else the path of the real program; UsageError without it."""
    if config.getoption("--nsq-server") == "embedded":
        return None
    folder = os.environ.get("NSQ_BIN")
    found = shutil.which(program, path=folder) if folder else shutil.which(program)
    if found is None:
        where = f"in NSQ_BIN={folder}" if folder else "on PATH, and NSQ_BIN is not set"
        raise pytest.UsageError(f"--nsq-server=real: no {program} {where}")
    return found


def _marker(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    """The keywords of all markers ``name`` on the test; the closest marker wins."""
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
    """Two nsqds (or as many as the marker says) registered with one nsqlookupd.

    With ``@pytest.mark.nsq_cluster(admin=True)`` also an nsqadmin, which needs the extra ``admin``.
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
    """``nsq_messages(topic)``: what was published to the servers of this test.

    Those of ``nsq_cluster`` and ``nsqd``, as the test uses them; it starts an nsqd if neither.
    """
    nsqds: tuple[Nsqd, ...] = ()
    if "nsq_cluster" in request.fixturenames:
        nsqds += request.getfixturevalue("nsq_cluster").nsqds
    if not nsqds or "nsqd" in request.fixturenames:
        nsqds += (request.getfixturevalue("nsqd"),)
    return NsqMessages(nsqds)
