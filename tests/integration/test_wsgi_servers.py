"""gunicorn and uWSGI, as users start them: a module-level Writer publishes in every worker."""

from __future__ import annotations

import http.client
import itertools
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import address, url
from tests.support.forking import Nsqd
from tests.support.programs import GUNICORN, UWSGI, Program
from tests.support.servers import Server
from tests.support.texts import DOCS, code_blocks

REQUESTS, CLIENTS, WORKERS = 200, 8, 2

# The words of docs/guides/gevent.rst; the flags behind them are of this test.
COMMANDS = {
    "gunicorn": ["gunicorn"],
    "gunicorn gthread": ["gunicorn", "-k", "gthread", "--threads", "4"],
    "gunicorn gevent": ["gunicorn", "-k", "gevent"],
    "gunicorn --preload": ["gunicorn", "--preload"],
    "gunicorn gthread --preload": ["gunicorn", "-k", "gthread", "--threads", "4", "--preload"],
    "gunicorn gevent --preload": ["gunicorn", "-k", "gevent", "--preload"],
    "uwsgi": ["uwsgi", "--master", "--enable-threads"],
    "uwsgi threads": ["uwsgi", "--master", "--enable-threads", "--threads", "4"],
    "uwsgi --lazy-apps": ["uwsgi", "--master", "--enable-threads", "--lazy-apps"],
    "uwsgi --py-call-osafterfork": [
        "uwsgi",
        "--master",
        "--enable-threads",
        "--py-call-osafterfork",
    ],
    "uwsgi without --enable-threads": ["uwsgi", "--master"],
}


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket: no port to choose."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except OSError:
            self.close()
            raise


class WebServer(Program):
    """A server process with its workers, at a unix socket."""

    def __init__(self, words: list[str], nsqd: Server, topic: str, import_publishes: bool) -> None:
        # A folder of pytest's may be too long for the name of a socket.
        self._folder = tempfile.TemporaryDirectory(prefix="web-")
        self.path = f"{self._folder.name}/socket"
        environment = {
            "NSQ_ADDRESS": address(nsqd),
            "NSQ_TOPIC": topic,
            "IMPORT_PUBLISHES": "1" if import_publishes else "",
        }
        if words[0] == "gunicorn":
            own = ["--bind", f"unix:{self.path}", "--workers", str(WORKERS)]
            own += ["tests.support.wsgi_app"]
        else:
            own = ["--http-socket", self.path, "--processes", str(WORKERS), "--die-on-term"]
            own += ["--need-app", "--module", "tests.support.wsgi_app"]
        super().__init__(
            [*words, *own], Path(self._folder.name), {**GUNICORN, **UWSGI, **environment}
        )

    def wait_until_it_listens(self) -> None:
        self.eventually(self._listens)

    def _listens(self) -> bool:
        connection = _Connection(self.path)
        try:
            connection.connect()
        except OSError:
            return False
        connection.close()
        return True

    def post(self, body: bytes) -> tuple[int, bytes]:
        connection = _Connection(self.path)
        try:
            connection.request("POST", "/", body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def kill(self) -> None:
        super().kill()
        self._folder.cleanup()


# uWSGI 2.0.30 calls one half of what a fork needs; Python 3.13 aborts then, with any application.
BROKEN = {"uwsgi --py-call-osafterfork"} if sys.version_info >= (3, 13) else set()


@pytest.fixture(params=[name for name in COMMANDS if name not in BROKEN])
def web(request: pytest.FixtureRequest, nsqd: Server, topic: str) -> Iterator[WebServer]:
    # Where the application is imported before the fork, its Writer is connected by then.
    before_fork = "--preload" in request.param or request.param.startswith("uwsgi")
    web = WebServer(COMMANDS[request.param], nsqd, topic, before_fork)
    yield web
    web.kill()


@pytest.mark.pairs
def test_every_request_that_is_answered_has_been_published(
    web: WebServer, nsqd: Server, topic: str, request: pytest.FixtureRequest
) -> None:
    web.wait_until_it_listens()
    answers: list[tuple[int, bytes]] = []

    deadline = time.monotonic() + 60

    def client(number: int) -> None:
        # One worker may be ready before the other: on until both have answered.
        for n in itertools.count():
            enough = n >= REQUESTS // CLIENTS and len({pid for _, pid in answers}) == WORKERS
            if enough or time.monotonic() > deadline:
                return
            answers.append(web.post(b"%d %d" % (number, n)))

    threads = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {status for status, _ in answers} == {200}, web.output
    assert len(answers) >= REQUESTS
    assert len({pid for _, pid in answers}) == WORKERS, "only one worker answers"
    stats = Nsqd(url(nsqd))
    name = request.node.callspec.params["web"]
    if "--lazy-apps" in name:
        imported = WORKERS
    elif "--preload" in name or name.startswith("uwsgi"):
        imported = 1
    else:
        imported = 0
    assert stats.count(topic) == len(answers) + imported
    # Each worker has one connection; where the parent has one, that lives too.
    parents = 1 if imported == 1 else 0
    assert len(stats.publishers(topic)) == WORKERS + parents
    web.signal(signal.SIGTERM)
    output = web.end()
    assert "Traceback" not in output
    assert "Error" not in output


def test_the_guide_shows_these_commands() -> None:
    shown = "\n".join(code_blocks(DOCS / "guides" / "gevent.rst", "console"))
    for words in COMMANDS.values():
        if words != COMMANDS["uwsgi without --enable-threads"]:
            assert " ".join(words) in shown, words
