"""The programs of the page on web servers, run as they stand, while one of two nsqds is killed.

Knows how the servers say where they listen; knows nothing of their workers.
"""

from __future__ import annotations

import functools
import http.client
import json
import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gnsqsync import Message, Reader
from tests.integration.conftest import address, url
from tests.support import realnsq
from tests.support.forking import Nsqd
from tests.support.programs import GUNICORN, UWSGI, Program
from tests.support.servers import Server
from tests.support.texts import DOCS, files_of, replaced

REQUESTS, CLIENTS, TOPIC = 1000, 32, "orders"
PAGE = DOCS / "servers" / "index.rst"
# Label of a server's section -> the text of the section.
SECTIONS = dict(
    re.findall(
        r"^\.\. _server-([\w-]+):\n(.*?)(?=^\.\. _|\Z)",
        PAGE.read_text(encoding="utf-8"),
        re.M | re.S,
    )
)
# Addresses of nsqd on the page. The port of the server becomes one that the kernel chooses.
USUAL_ADDRESSES = ("127.0.0.1:4150", "127.0.0.1:4250")
SERVERS = ("gunicorn", "uwsgi", "waitress-serve", "python")
LISTENS = (
    r"(?:Listening (?:at: |on )http://|Serving on http://|bound to TCP address )127\.0\.0\.1:(\d+)"
)


class Case(NamedTuple):
    """A section and one of its commands that start a server."""

    section: str
    command: str

    def __str__(self) -> str:
        return self.section + ("-preload" if "--preload" in self.command else "")


CASES = [
    Case(name, command)
    for name, text in sorted(SECTIONS.items())
    for command in re.findall(r"^   \$ (.*)$", text, re.MULTILINE)
    if command.split()[0] in SERVERS
]


class WebServer(Program):
    """The server of a section in a folder of its own."""

    def __init__(self, case: Case, folder: Path, nsqds: list[Server]) -> None:
        self._stop_signal = signal.SIGINT if case.section == "waitress" else signal.SIGTERM
        name = "server.py" if case.command.startswith("python ") else "app.py"
        text = files_of(PAGE)[name]
        text = replaced(text, dict(zip(USUAL_ADDRESSES, map(address, nsqds), strict=True)))
        command = case.command.replace("127.0.0.1:8000", "127.0.0.1:0")
        text = text.replace('("127.0.0.1", 8000)', '("127.0.0.1", 0)')
        assert "8000" not in command + text
        (folder / name).write_text(text, encoding="utf-8")
        super().__init__(command.split(), folder, {**GUNICORN, **UWSGI})

    def wait_until_it_listens(self) -> None:
        self.port = int(self.wait_for(LISTENS)[1])

    def post(self, number: int) -> tuple[int, str]:
        """The status, and the error that the answer names."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            body, headers = json.dumps({"number": number}), {"Content-Type": "application/json"}
            connection.request("POST", "/orders", body, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        assert answer.status in (200, 503), (answer.status, text, self.output)
        return answer.status, json.loads(text).get("error", "")

    def stop(self) -> str:
        """By the signal that the page gives; what it wrote."""
        self.signal(self._stop_signal)
        return self.end()


class Clients:
    """32 clients that send 1,000 orders, and each one again after a 503."""

    def __init__(self, web: WebServer) -> None:
        self._web = web
        self._numbers = iter(range(REQUESTS))
        self._changed = threading.Condition()
        self.accepted: set[int] = set()
        self.errors: dict[int, list[str]] = {}
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        try:
            while (number := self._next()) is not None:
                self._order(number)
        except BaseException as error:
            with self._changed:
                self.failures.append(error)
                self._changed.notify_all()

    def _next(self) -> int | None:
        with self._changed:
            return next(self._numbers, None)

    def _order(self, number: int) -> None:
        for _ in range(10):
            status, error = self._web.post(number)
            with self._changed:
                if status == 200:
                    self.accepted.add(number)
                    self._changed.notify_all()
                    return
                self.errors.setdefault(number, []).append(error)
        raise AssertionError(f"order {number} got only {self.errors[number]}")

    def wait_for(self, count: int) -> None:
        """Until so many orders were accepted."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: len(self.accepted) >= count or self.failures, timeout=60
            )
        assert self.failures == []
        assert done, self._web.output

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
        assert self.failures == []
        assert not any(thread.is_alive() for thread in self._threads), self._web.output


def stored_in(nsqds: list[Server], accepted: set[int]) -> list[Counter[int]]:
    """The numbers of all orders that each has; waits for the accepted ones, not for ever.

    The depth alone does not do: a killed nsqd answers OK before it notes the depth, and finds the
    last message in its file nevertheless.
    """
    total: int = sum(Nsqd(url(nsqd)).topic(TOPIC)["depth"] for nsqd in nsqds)
    stored: list[Counter[int]] = [Counter() for _ in nsqds]
    lock, complete = threading.Lock(), threading.Event()
    missing = set(accepted)

    def count(counter: Counter[int], message: Message) -> None:
        number = json.loads(message.body)["number"]
        with lock:
            counter[number] += 1
            missing.discard(number)
            if not missing and sum(c.total() for c in stored) >= total:
                complete.set()

    readers = []
    for nsqd, counter in zip(nsqds, stored, strict=True):
        options = {"nsqd_tcp_addresses": address(nsqd), "max_in_flight": 100, "runtime": "threads"}
        readers.append(Reader(TOPIC, "count", functools.partial(count, counter), **options))
        readers[-1].start(block=False)
    # Where a message is missing it is waited for in vain, so this is only for a slow machine.
    complete.wait(90)
    for reader in readers:
        reader.stop()
        assert reader.join(60)
    assert sum(c.total() for c in stored) >= total
    return stored


@pytest.fixture
def nsqds(request: pytest.FixtureRequest) -> Iterator[list[Server]]:
    """Two real ones, which have each message on disk before their OK; embedded ones if need be."""
    kind = "embedded" if request.config.getoption("--servers") == "embedded" else "real"
    if kind == "real":
        try:
            realnsq.find_or_build()
        except realnsq.Unavailable:
            if os.environ.get("CI") == "true":
                raise
            kind = "embedded"
    # Without a sync of the position the real nsqd loses a young queue when it is killed.
    flags = ("-mem-queue-size=0", "-sync-every=1")
    servers = [Server(kind, "nsqd", flags) for _ in USUAL_ADDRESSES]
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.discard()


@pytest.fixture(params=CASES, ids=str)
def web(request: pytest.FixtureRequest, tmp_path: Path, nsqds: list[Server]) -> Iterator[WebServer]:
    web = WebServer(request.param, tmp_path, nsqds)
    yield web
    web.kill()


@pytest.mark.timeout(400)
def test_a_killed_nsqd_loses_no_order_that_was_accepted(
    web: WebServer, nsqds: list[Server]
) -> None:
    web.wait_until_it_listens()
    first = nsqds[0]
    clients = Clients(web)
    clients.wait_for(REQUESTS // 3)
    if first.kind == "real":
        first.kill()
    else:
        first.stop()  # it writes to disk only then
    at_kill = len(clients.accepted)
    clients.join()
    assert at_kill < REQUESTS - CLIENTS, "the kill came too late to be in the middle"
    assert clients.accepted == set(range(REQUESTS))
    first.start()
    before, after = stored_in(nsqds, clients.accepted)
    # Both were used, and the one that lived took all that came later.
    assert before.total() > 0
    assert after.total() >= REQUESTS - at_kill - CLIENTS
    stored = before + after
    errors = clients.errors
    assert {e for names in errors.values() for e in names} <= {"NotSent", "OutcomeUnknown"}
    for number in range(REQUESTS):
        unknown = errors.get(number, []).count("OutcomeUnknown")
        assert 1 <= stored[number] <= 1 + unknown, (number, errors.get(number), stored[number])
    assert stored.total() - REQUESTS <= CLIENTS, "more twice than were under way at the kill"
    assert "Traceback" not in web.stop()


def test_every_section_starts_a_server() -> None:
    assert len(SECTIONS) == 5
    assert sorted(map(str, CASES)) == sorted({*SECTIONS, "gunicorn-gevent-preload"})
