"""The servers, publishers and consumers of one row. Knows nothing of rows and goals."""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.runners import rawnsq
from tests.bench.runners.waiting import Order
from tests.bench.waits.figures import Call, Sent, calls_of
from tests.bench.waits.peers import Peer
from tests.support.servers import Server

CHANNEL = "waits"
START_TIMEOUT = 60.0
# nsqd and the consumer's log have no event, so they are looked at.
LOOK = 0.1


class Cancelled(RuntimeError):
    """The whole run was told to end."""


class Planned(NamedTuple):
    """A message to publish: seconds from the beginning, the number of its nsqd, its kind."""

    at: float
    nsqd: int
    kind: str


def at_rate(seconds: float, rate: float, nsqds: Sequence[int], seed: str) -> Iterator[Planned]:
    """Plan good messages at a rate at each nsqd; gaps vary by half, so nothing keeps step."""
    chance = random.Random(seed)
    for nsqd in nsqds:
        at = chance.random() / rate
        while at < seconds:
            yield Planned(at, nsqd, "good")
            at += (0.5 + chance.random()) / rate


class Consumer:
    """A running consumer of one peer, and the calls of its handler."""

    def __init__(self, peer: Peer, order: Order, folder: Path) -> None:
        self.peer = peer
        self.order = order
        self._log = Path(order.log)
        self._read = 0
        self._calls: list[Call] = []
        self._errors = folder / f"{peer.name}.errors"
        self.process = peer.start(order, self._errors)

    def calls(self) -> list[Call]:
        """Return the calls up to now; RuntimeError if the consumer has ended."""
        if self.process.poll() is not None:
            said = self._errors.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{self.peer.name} ended:\n{said}")
        if self._log.exists():
            with self._log.open("rb") as file:
                file.seek(self._read)
                whole, end, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + len(end)
            self._calls += calls_of((whole + end).decode())
        return self._calls

    def cpu_seconds(self) -> float:
        """Return user and system CPU time of the process."""
        text = Path(f"/proc/{self.process.pid}/stat").read_text()
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / 100

    def stop(self) -> None:
        """End the process at once, as nothing of it is needed."""
        self.process.kill()
        self.process.wait()


class Stage:
    """The row's own servers and files; a context manager that removes them."""

    def __init__(
        self, name: str, peers: Sequence[Peer], cancelled: threading.Event, seconds: float
    ) -> None:
        self.name = name
        # The length of a steady stream.
        self.seconds = seconds
        self._cancelled = cancelled
        self.peers = list(peers)
        self.nsqds: list[Server] = []
        self._stack = ExitStack()
        self._numbers = 0

    def __enter__(self) -> Stage:
        folder = tempfile.TemporaryDirectory(prefix=f"waits-{self.name}-")
        self.folder = Path(self._stack.enter_context(folder))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def sleep(self, seconds: float) -> None:
        """Sleep; raise Cancelled at once if the run is told to end."""
        if self._cancelled.wait(max(0.0, seconds)):
            raise Cancelled(f"{self.name} was cancelled")

    def enter(self, thing: AbstractContextManager[Any]) -> None:
        """Enter a context that ends with the stage."""
        self._stack.enter_context(thing)

    def serve(self, program: str, *flags: str) -> Server:
        """Start a real nsqd or nsqlookupd."""
        server = Server("real", program, flags)
        self._stack.callback(server.discard)
        server.start()
        if program == "nsqd":
            self.nsqds.append(server)
        return server

    def topic(self, peer: Peer, number: int | str | None = None) -> str:
        """Return the peer's own topic, so that no peer takes the messages of another."""
        return f"{self.name}-{peer.name}" + ("" if number is None else f"-{number}")

    def create(self, topic: str, nsqds: Iterable[Server]) -> None:
        """Make the topic with its channel."""
        for nsqd in nsqds:
            for path in ("topic", "channel"):
                query = urllib.parse.urlencode({"topic": topic, "channel": CHANNEL})
                with urllib.request.urlopen(_url(nsqd, f"/{path}/create?{query}"), data=b""):
                    pass

    def consume(self, peer: Peer, topics: Sequence[str], **more: Any) -> Consumer:
        """Start a consumer with the peer's defaults."""
        log = str(self.folder / f"{topics[0]}.calls")
        order = Order(log=log, topics=list(topics), channel=CHANNEL, **more)
        consumer = Consumer(peer, order, self.folder)
        self._stack.callback(consumer.stop)
        return consumer

    def consume_all(self, nsqds: Sequence[Server] | None = None, **more: Any) -> list[Consumer]:
        """Start a consumer of each peer on all nsqds, and wait until they have subscribed."""
        nsqds = self.nsqds if nsqds is None else nsqds
        found = []
        for peer in self.peers:
            self.create(self.topic(peer), nsqds)
            addresses = [address(nsqd) for nsqd in nsqds]
            found.append(self.consume(peer, [self.topic(peer)], nsqds=addresses, **more))
        for consumer in found:
            self.wait_subscribed(consumer, nsqds)
        # The first look around of a client is over then.
        self.sleep(2)
        return found

    def wait_subscribed(self, consumer: Consumer, nsqds: Iterable[Server]) -> None:
        """Wait until the consumer has subscribed to all its topics everywhere."""
        for nsqd in nsqds:
            for topic in consumer.order.topics:
                self.wait(
                    lambda nsqd=nsqd, topic=topic: self._clients(consumer, nsqd, topic),
                    START_TIMEOUT,
                    f"{consumer.peer.name} did not subscribe to {topic}",
                )

    def wait(self, ready: Callable[[], object], seconds: float, what: str = "") -> bool:
        """Wait until ``ready()``. After that time, return False, or raise if ``what`` is given."""
        give_up = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > give_up:
                if what:
                    raise RuntimeError(what)
                return False
            self.sleep(LOOK)
        return True

    def publish(self, plan: Iterable[Planned]) -> dict[str, list[Sent]]:
        """Publish the plan to the topic of each peer, in time; return what each peer was sent."""
        sent: dict[str, list[Sent]] = {peer.name: [] for peer in self.peers}
        with self.publishers() as publish:
            began = time.time()
            for at, nsqd, kind in sorted(plan):
                self.sleep(began + at - time.time())
                for peer in self.peers:
                    sent[peer.name].append(publish(self.topic(peer), nsqd, kind))
        return sent

    @contextmanager
    def publishers(self) -> Iterator[Callable[[str, int, str], Sent]]:
        """Yield a function that publishes to a topic, by the number of an nsqd, a kind."""
        with ExitStack() as stack:
            sockets = [stack.enter_context(rawnsq.connect(nsqd.tcp_address)) for nsqd in self.nsqds]

            def publish(topic: str, nsqd: int, kind: str) -> Sent:
                self._numbers += 1
                now = time.time_ns()
                body = b"%d %d %d %s" % (nsqd, self._numbers, now, kind.encode())
                sockets[nsqd].sendall(rawnsq.mpub(topic, [body]))
                rawnsq.read_ok(sockets[nsqd])
                return Sent(nsqd, self._numbers, now / 1e9, kind)

            yield publish

    def fill(self, topic: str, nsqd: int, messages: int) -> None:
        """Put good messages into the topic at once."""
        with rawnsq.connect(self.nsqds[nsqd].tcp_address) as sock:
            bodies = [b"%d %d %d good" % (nsqd, n, time.time_ns()) for n in range(messages)]
            for begin in range(0, messages, 1000):
                sock.sendall(rawnsq.mpub(topic, bodies[begin : begin + 1000]))
                rawnsq.read_ok(sock)

    def _clients(self, consumer: Consumer, nsqd: Server, topic: str) -> bool:
        consumer.calls()
        with urllib.request.urlopen(_url(nsqd, f"/stats?format=json&topic={topic}")) as answer:
            topics = json.load(answer)["topics"]
        return any(c["client_count"] for t in topics for c in t["channels"])


def address(server: Server) -> str:
    """Return the TCP address of a server as a client's option."""
    return "{}:{}".format(*server.tcp_address)


def http(server: Server) -> str:
    """Return the HTTP address of a server as a client's option."""
    return "{}:{}".format(*server.http_address)


def _url(server: Server, path: str) -> str:
    return f"http://{http(server)}{path}"
