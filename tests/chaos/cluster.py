"""Three real nsqds and two real nsqlookupds, each behind a fault proxy, and the record of faults.

Knows how to hurt servers and when; knows nothing of clients and of what they promise.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from tests.chaos.accounts import Facts, Fault
from tests.chaos.liar import Liar
from tests.chaos.namespaces import Namespace, SeparateServer
from tests.support.faultproxy import FaultProxy, Plan, Trouble
from tests.support.servers import Server

NSQDS, LOOKUPDS = 3, 2
HEARTBEAT = 1.0
MSG_TIMEOUT = 3.0
CHANNEL = "ch"

# nsqd writes each message to disk before its OK, and never notes how far it has read: after a kill
# it delivers again what it had delivered, instead of losing what was in flight. Without these flags
# it loses messages that it said OK to (docs/protocol/end#what-survives and
# docs/protocol/end#sync-window), and no client could help that.
LOSSLESS = (
    "-mem-queue-size=0",
    "-sync-every=1000000000000",
    "-sync-timeout=1000h",
    "-max-bytes-per-file=10000000000",
)
_HTTP_SECONDS = 10.0
# Half open and cut links are over when both sides have seen it, after two silent heartbeats.
_LINK_SECONDS = 3 * HEARTBEAT


def _left_in(channel: dict[str, Any]) -> int:
    return sum(abs(channel.get(key, 0)) for key in ("depth", "in_flight_count", "deferred_count"))


class Nsqd:
    """One nsqd: its process, the proxy in front of it, and what it says of itself."""

    def __init__(self, number: int, server: Server) -> None:
        self.number = number
        self.server = server
        # Whether a kill loses nothing now; see Cluster.may_be_killed.
        self.may_die = True
        self.proxy: FaultProxy

    @property
    def address(self) -> str:
        """Where clients find it: the proxy."""
        return self.proxy.text

    def http(self, path: str, body: bytes | None = None) -> Any:
        """GET, or POST with a body. JSON when it is JSON; OSError when it does not answer."""
        url = "http://{}:{}{}".format(*self.server.http_address, path)
        request = urllib.request.Request(url, data=body)
        with urllib.request.urlopen(request, timeout=_HTTP_SECONDS) as answer:
            text = answer.read()
        return json.loads(text) if text.startswith(b"{") else text

    def channel(self, topic: str) -> dict[str, Any]:
        """The channel's /stats, with ``topic_depth``; {} where there is none."""
        for found in self.http(f"/stats?format=json&topic={topic}")["topics"] or ():
            for channel in found["channels"] or ():
                if channel["channel_name"] == CHANNEL:
                    return {**channel, "topic_depth": found["depth"]}
        return {}

    def reads_what_it_writes(self, queue: str) -> bool:
        """Whether the queue, of ``topic`` or ``topic:channel``, is read from its newest file.

        After a kill nsqd begins a new one, and has the old ones to read before.
        """
        return len(list(self.server.data_path.glob(f"{queue}.diskqueue.0*.dat"))) <= 1

    def has_read_all(self, topic: str) -> bool:
        """Whether both queues are read from their newest files."""
        return all(map(self.reads_what_it_writes, (topic, f"{topic}:{CHANNEL}")))

    def left(self, topic: str) -> int:
        """Messages that are not finished yet, or another number than 0 in their place.

        Behind a kill depths are wrong, below 0 too, until the newest file is read to its end.
        """
        channel = self.channel(topic)
        return _left_in(channel) + abs(channel.get("topic_depth", 0))

    def left_in_channel(self, topic: str) -> int:
        """As ``left()``, without what has not come to the channel."""
        return _left_in(self.channel(topic))

    @contextlib.contextmanager
    def paused(self, topic: str) -> Iterator[None]:
        """The channel delivers nothing meanwhile."""
        self.http(f"/channel/pause?topic={topic}&channel={CHANNEL}", b"")
        try:
            yield
        finally:
            self.http(f"/channel/unpause?topic={topic}&channel={CHANNEL}", b"")

    def signal(self, number: int) -> None:
        assert self.server.process is not None
        self.server.process.send_signal(number)


class Cluster:
    """The servers of one run. ``lies``: scripted nsqlookupds; ``spaces``: nsqds in namespaces."""

    def __init__(
        self, topics: list[str], *, seed: str, lies: bool = False, spaces: bool = False
    ) -> None:
        self.topics = topics
        self.faults: list[Fault] = []
        self.counts: dict[str, int] = {}
        self.nsqds: list[Nsqd] = []
        self.liars: list[Liar] = []
        self.lookups: list[FaultProxy] = []
        self.spaces: list[Namespace] = []
        self.lookupds: list[Server] = []
        self._lock = threading.Lock()
        self._open = contextlib.ExitStack()
        try:
            self._start(seed, lies, spaces)
        except BaseException:
            self._open.close()
            raise

    def _start(self, seed: str, lies: bool, spaces: bool) -> None:
        if lies:
            for _ in range(LOOKUPDS):
                self.liars.append(Liar(self._producers))
                self._open.callback(self.liars[-1].close)
        elif not spaces:
            # An nsqd in a namespace cannot reach the loopback.
            self.lookupds = [Server("real", "nsqlookupd") for _ in range(LOOKUPDS)]
        for server in self.lookupds:
            self._open.callback(server.discard)
            server.start()
        flags = [
            *LOSSLESS,
            *("-lookupd-tcp-address={}:{}".format(*s.tcp_address) for s in self.lookupds),
        ]
        for number in range(NSQDS):
            if spaces:
                self.spaces.append(Namespace())
                self._open.callback(self.spaces[-1].close)
                server = SeparateServer(self.spaces[-1], "nsqd", flags)
            else:
                server = Server("real", "nsqd", flags)
            self._open.callback(server.discard)
            self.nsqds.append(Nsqd(number, server))
            server.start()
        for nsqd in self.nsqds:
            for topic in self.topics:
                nsqd.http(f"/topic/create?topic={topic}", b"")
                nsqd.http(f"/channel/create?topic={topic}&channel={CHANNEL}", b"")
        threads = [threading.Thread(target=nsqd.server.restart) for nsqd in self.nsqds]
        for thread in threads:
            # A clean end writes down where each queue begins; see LOSSLESS.
            thread.start()
        for thread in threads:
            thread.join()
        for nsqd in self.nsqds:
            nsqd.proxy = self._proxy(nsqd.server.tcp_address, f"{seed}:{nsqd.number}", nsqd.number)
        for number, server in enumerate(self.lookupds):
            self.lookups.append(self._proxy(server.http_address, f"{seed}:lookupd {number}", None))

    def _proxy(self, target: tuple[str, int], seed: str, nsqd: int | None) -> FaultProxy:
        def told(trouble: Trouble) -> None:
            if nsqd is not None:
                seconds = trouble.amount if trouble.kind == "stall" else _LINK_SECONDS
                self.note(trouble.kind, nsqd, time.monotonic(), seconds)

        proxy = FaultProxy(target, seed=seed, told=told)
        self._open.callback(proxy.close)
        return proxy

    def _producers(self) -> list[dict[str, Any]]:
        return [
            {"broadcast_address": host, "tcp_port": port, "http_port": nsqd.server.http_address[1],
             "hostname": "h", "version": "1.3.0"}
            for nsqd in self.nsqds
            for host, port in (nsqd.server.tcp_address,)
        ]  # fmt: skip

    # -- what clients are given ----------------------------------------------------------------

    @property
    def lookup_urls(self) -> list[str]:
        if self.liars:
            return [liar.url for liar in self.liars]
        return [f"http://{proxy.text}" for proxy in self.lookups]

    @property
    def address_map(self) -> dict[str, str]:
        """From what nsqlookupd tells to the proxy in front of it."""
        return {"{}:{}".format(*n.server.tcp_address): n.address for n in self.nsqds}

    def facts(self) -> Facts:
        numbers = {n.address: n.number for n in self.nsqds}
        numbers |= {"{}:{}".format(*n.server.tcp_address): n.number for n in self.nsqds}
        with self._lock:
            return Facts(numbers, list(self.faults), MSG_TIMEOUT)

    # -- faults --------------------------------------------------------------------------------

    def note(self, kind: str, nsqd: int | None, began: float, seconds: float = 0.0) -> None:
        """Put on record that this was done."""
        with self._lock:
            self.faults.append(Fault(kind, nsqd, began, began + seconds))
            self.counts[kind] = self.counts.get(kind, 0) + 1

    @contextlib.contextmanager
    def fault(self, kind: str, *nsqds: Nsqd) -> Iterator[None]:
        """Put on record what the block does; without nsqds it concerns none of them."""
        began = time.monotonic()
        try:
            yield
        finally:
            for nsqd in nsqds:
                self.note(kind, nsqd.number, began, time.monotonic() - began)
            if not nsqds:
                with self._lock:
                    self.counts[kind] = self.counts.get(kind, 0) + 1

    def rough(self, nsqd: Nsqd, plan: Plan | None) -> None:
        """Links that are made from now on have this plan; those that live end, so that all do."""
        nsqd.proxy.plan = plan
        self.cut(nsqd, reset=False)

    def cut(self, nsqd: Nsqd, reset: bool) -> None:
        """End all links to it at once."""
        self.note("reset" if reset else "cut", nsqd.number, time.monotonic(), _LINK_SECONDS)
        nsqd.proxy.end_links(reset)

    def may_be_killed(self, nsqd: Nsqd, timeout: float) -> bool:
        """Bring it to where a kill loses nothing; False when it does not get there in time.

        After an earlier kill it has noted once how far it had read, when it came to the end of the
        old file. What was in flight then must be finished before the next kill: so the
        channel is paused until nothing is in flight, and all else is on disk. See LOSSLESS.
        """
        deadline = time.monotonic() + timeout
        for topic in [] if nsqd.may_die else self.topics:
            if not self._wait(lambda topic=topic: self._is_drained(nsqd, topic), deadline):  # type: ignore[misc]
                return False
            with nsqd.paused(topic):
                if not self._wait(lambda topic=topic: self._is_idle(nsqd, topic), deadline):  # type: ignore[misc]
                    return False
        nsqd.may_die = True
        return True

    def wait_until_idle(self, nsqd: Nsqd, timeout: float) -> bool:
        """Until its channels have nothing left, while its topics are paused."""

        def is_idle() -> bool:
            return all(
                nsqd.reads_what_it_writes(f"{topic}:{CHANNEL}") and not nsqd.left_in_channel(topic)
                for topic in self.topics
            )

        return self._wait(is_idle, time.monotonic() + timeout)

    @staticmethod
    def _is_drained(nsqd: Nsqd, topic: str) -> bool:
        if not nsqd.has_read_all(topic):
            return False
        channel = nsqd.channel(topic)
        return channel["depth"] == 0 and channel["topic_depth"] == 0

    @staticmethod
    def _is_idle(nsqd: Nsqd, topic: str) -> bool:
        channel = nsqd.channel(topic)
        return not channel["in_flight_count"] and not channel["deferred_count"]

    @staticmethod
    def _wait(look: Callable[[], bool], deadline: float) -> bool:
        while not look():
            if time.monotonic() > deadline:
                return False
            # nsqd has no event for us.
            time.sleep(0.02)
        return True

    def kill(self, nsqd: Nsqd) -> None:
        """SIGKILL. The caller starts it again."""
        began = time.monotonic()
        nsqd.server.kill()
        nsqd.may_die = False
        self.note("kill", nsqd.number, began, time.monotonic() - began + _LINK_SECONDS)

    def restart(self, nsqd: Nsqd, *flags: str) -> None:
        """A clean stop and a start, with ``flags`` in addition this time."""
        server = nsqd.server
        usual = server.flags
        with self.fault("restart", nsqd):
            server.stop()
            server.flags = [*usual, *flags]
            try:
                server.start()
            finally:
                server.flags = usual
        nsqd.may_die = True

    @contextlib.contextmanager
    def stopped(self, nsqd: Nsqd) -> Iterator[None]:
        """SIGSTOP, and SIGCONT behind the block."""
        with self.fault("SIGSTOP", nsqd):
            nsqd.signal(signal.SIGSTOP)
            try:
                yield
            finally:
                nsqd.signal(signal.SIGCONT)

    # -- the end -------------------------------------------------------------------------------

    def clients_left(self) -> int:
        """Connections that nsqds still count."""
        left = 0
        for nsqd in self.nsqds:
            stats = nsqd.http("/stats?format=json")
            left += len(stats["producers"] or ())
            for topic in self.topics:
                left += nsqd.channel(topic).get("client_count", 0)
        return left

    def logs(self) -> str:
        """The last lines of each nsqd."""
        return "\n".join(f"nsqd {n.number}:\n{n.server.log[-2000:]}" for n in self.nsqds)

    def close(self) -> None:
        self._open.close()
