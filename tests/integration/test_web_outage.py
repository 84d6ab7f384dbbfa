"""Web servers while nsqd is away: pages go on as if nothing were, and those that publish fail.

    python -m tests.integration.test_web_outage

prints the times of the requests, with the publish_timeout that a Writer has by default.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.conftest import address
from tests.support.ports import free_ports
from tests.support.programs import GUNICORN, UWSGI, Program
from tests.support.servers import Server, unique

SERVERS = {
    "gthread": ["gunicorn", "-w", "1", "-k", "gthread", "--threads", "4"],
    "gevent": ["gunicorn", "-w", "1", "-k", "gevent"],
    "uwsgi": ["uwsgi", "--master", "--need-app", "--die-on-term", "--processes", "1"],
}
APPLICATION = "tests.support.outage_app"
PAGES = ("/", "/publish")
CLIENTS = 8
# Seconds that a publish of the test may take. A page that waits for one takes more than half of it.
# A busy machine sometimes needs more than two seconds for a publish that succeeds.
TIMEOUT = 5.0


class Answer(NamedTuple):
    page: str
    seconds: float
    status: int
    text: str


class Web:
    """A server of one process with the application."""

    def __init__(self, kind: str, nsqd: Server, publish_timeout: float) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="web-")
        self._held = ExitStack()
        (self._port,) = self._held.enter_context(free_ports())
        where = f"127.0.0.1:{self._port}"
        words = {
            "gunicorn": ["--bind", where, APPLICATION],
            "uwsgi": ["--http-socket", where, "--module", APPLICATION],
        }[SERVERS[kind][0]]
        environment = {
            "NSQ_ADDRESS": address(nsqd),
            "NSQ_TOPIC": unique(),
            "PUBLISH_TIMEOUT": f"{publish_timeout}",
        }
        self._program = Program(
            [*SERVERS[kind], *words],
            Path(self._folder.name),
            {**GUNICORN, **UWSGI, **environment},
        )
        try:
            self._program.eventually(self._listens)
        except BaseException:
            self.kill()
            raise

    def _listens(self) -> bool:
        try:
            return self.get("/").status == 200
        except OSError:
            return False

    def get(self, page: str) -> Answer:
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request("GET", page)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        return Answer(page, time.monotonic() - began, answer.status, text)

    def load(self, enough: Callable[[], object]) -> list[Answer]:
        """What clients get who ask for one page after the other until it is enough."""
        answers: list[Answer] = []

        def client(number: int) -> None:
            turn = number
            while not enough():
                answers.append(self.get(PAGES[turn % 2]))
                turn += 1
                # A server that has no idle moment shows its own limits.
                time.sleep(0.1)

        threads = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
            assert not thread.is_alive(), self._program.output
        return answers

    def stop(self) -> None:
        self._program.signal(signal.SIGTERM)
        output = self._program.end()
        assert "Traceback" not in output

    def kill(self) -> None:
        self._program.kill()
        self._held.close()
        self._folder.cleanup()


@contextmanager
def refused(nsqd: Server) -> Iterator[None]:
    nsqd.stop()
    yield
    nsqd.start()


@contextmanager
def black_holed(nsqd: Server) -> Iterator[None]:
    """In its place a listener whose backlog is full: it answers no SYN."""
    nsqd.stop()
    nsqd._held.release()
    with socket.socket() as hole:
        hole.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        hole.bind(nsqd.tcp_address)
        hole.listen(0)
        fillers = [socket.socket() for _ in range(8)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(nsqd.tcp_address)
        yield
        for filler in fillers:
            filler.close()
    nsqd.start()


@contextmanager
def stopped(nsqd: Server) -> Iterator[None]:
    os.kill(nsqd.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(nsqd.pid, signal.SIGCONT)


OUTAGES = {"refused": refused, "black-holed": black_holed, "stopped": stopped}


def during(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def measure(
    web: Web, nsqd: Server, outage: str, publish_timeout: float, seconds: float
) -> dict[str, list[Answer]]:
    """The answers in each part of the story."""
    phases = {"before": web.load(during(seconds))}
    with OUTAGES[outage](nsqd):
        phases["not known yet"] = web.load(during(max(1.0, publish_timeout) + 0.3))
        phases["known"] = web.load(during(seconds))
    back: list[float] = []

    def is_back() -> bool:
        if not back and web.get("/publish").status == 200:
            back.append(time.monotonic())
        return bool(back)

    began = time.monotonic()
    phases["being found"] = web.load(is_back)
    assert back[0] - began < 60
    phases["after"] = web.load(during(seconds))
    return phases


def times(answers: list[Answer], page: str) -> list[float]:
    return [answer.seconds for answer in answers if answer.page == page]


@pytest.fixture(params=["gthread", "gevent"])
def web(request: pytest.FixtureRequest, own_nsqd: Server) -> Iterator[Web]:
    web = Web(request.param, own_nsqd, TIMEOUT)
    yield web
    web.kill()


@pytest.fixture
def own_nsqd(site: object) -> Iterator[Server]:
    nsqd = Server(site.kind, "nsqd").start()  # type: ignore[attr-defined]
    yield nsqd
    nsqd.discard()


@pytest.mark.parametrize("outage", list(OUTAGES))
@pytest.mark.pairs
def test_an_outage_does_not_stall_pages(web: Web, own_nsqd: Server, outage: str) -> None:
    phases = measure(web, own_nsqd, outage, TIMEOUT, 1.0)
    for phase, answers in phases.items():
        assert {a.status for a in answers if a.page == "/"} <= {200}, phase
        # Two timeouts where a page waits for a thread behind one that publishes.
        assert max((answer.seconds for answer in answers), default=0.0) < 4 * TIMEOUT, phase
    for phase in ("before", "after"):
        assert {answer.status for answer in phases[phase]} == {200}, phase
    known = phases["known"]
    assert {answer.status for answer in known if answer.page == "/publish"} == {503}
    assert all(
        a.text.startswith("NotSent: no nsqd can be reached for ") for a in known if a.status > 200
    )
    for page in PAGES:
        # A single publish may try whether nsqd is back; the others do not wait for it.
        assert statistics.median(times(known, page)) < TIMEOUT / 2, page
    web.stop()


def _main() -> None:
    print("| server | nsqd | when | / p50 | / max | /publish p50 | /publish max | answers |")
    print("|---|---|---|---|---|---|---|---|")
    for kind in SERVERS:
        for outage in OUTAGES:
            nsqd = Server("real", "nsqd").start()
            web = Web(kind, nsqd, 5.0)
            try:
                for phase, answers in measure(web, nsqd, outage, 5.0, 3.0).items():
                    cells = []
                    for page in PAGES:
                        took = times(answers, page) or [0.0]
                        cells.append(f"{statistics.median(took) * 1000:.1f} ms")
                        cells.append(f"{max(took) * 1000:.0f} ms")
                    print("|", " | ".join([kind, outage, phase, *cells, f"{len(answers)}"]), "|")
            finally:
                web.kill()
                nsqd.discard()


if __name__ == "__main__":
    _main()
