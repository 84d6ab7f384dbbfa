"""gunicorn and uWSGI, as users start them: a module-level Writer publishes in every worker."""

from __future__ import annotations

import http.client
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import address, url
from tests.support.forking import Nsqd
from tests.support.servers import Server
from tests.support.texts import DOCS, code_blocks

ROOT = Path(__file__).parents[2]
REQUESTS, CLIENTS, WORKERS = 200, 8, 2
STOP_TIMEOUT = 20.0

# By the words of docs/guides/fork.rst; the flags behind them are of this test.
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
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self._path)
        except OSError:
            self.close()
            raise


class WebServer:
    """A server process with its workers, and what it wrote."""

    def __init__(self, words: list[str], nsqd: Server, topic: str, import_publishes: bool) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="web-")
        self.path = f"{self._folder.name}/socket"
        self._log_path = Path(self._folder.name, "log")
        environment = {
            **os.environ,
            "NSQ_ADDRESS": address(nsqd),
            "NSQ_TOPIC": topic,
            "IMPORT_PUBLISHES": "1" if import_publishes else "",
            "PYTHONPATH": str(ROOT),
        }
        program, *flags = words
        if program == "gunicorn":
            own = ["--bind", f"unix:{self.path}", "--workers", str(WORKERS)]
            own += ["--no-control-socket", "tests.support.wsgi_app"]
        else:
            own = ["--http-socket", self.path, "--processes", str(WORKERS), "--die-on-term"]
            own += ["--need-app", "--wsgi-file", "tests/support/wsgi_app.py"]
            if sys.prefix != sys.base_prefix:
                own += ["--virtualenv", sys.prefix]
        command = [str(Path(sys.executable).with_name(program)), *flags, *own]
        with open(self._log_path, "wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def wait_until_it_listens(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                connection = _Connection(self.path)
                connection.connect()
            except OSError:
                assert self._process.poll() is None, self.log
                assert time.monotonic() < deadline, self.log
                time.sleep(0.02)
            else:
                connection.close()
                return

    def post(self, body: bytes) -> tuple[int, bytes]:
        connection = _Connection(self.path)
        try:
            connection.request("POST", "/", body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self._process.terminate()
        try:
            return self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it ignores SIGTERM:\n{self.log}") from None

    def discard(self) -> None:
        try:
            # The session is its own: whatever worker it may have left.
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._folder.cleanup()


# uWSGI 2.0.30 calls one half of what a fork needs; Python 3.13 aborts then, with any application.
BROKEN = {"uwsgi --py-call-osafterfork"} if sys.version_info >= (3, 13) else set()


@pytest.fixture(params=[name for name in COMMANDS if name not in BROKEN])
def web(request: pytest.FixtureRequest, nsqd: Server, topic: str) -> Iterator[WebServer]:
    # Where the application is imported before the fork, its Writer is connected by then.
    before_fork = "--preload" in request.param or request.param.startswith("uwsgi")
    web = WebServer(COMMANDS[request.param], nsqd, topic, before_fork)
    yield web
    web.discard()


def test_every_request_that_is_answered_has_been_published(
    web: WebServer, nsqd: Server, topic: str, request: pytest.FixtureRequest
) -> None:
    web.wait_until_it_listens()
    answers: list[tuple[int, bytes]] = []

    deadline = time.monotonic() + 30

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
    assert {status for status, _ in answers} == {200}, web.log
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
    assert web.stop() == 0, web.log
    assert "Traceback" not in web.log, web.log
    assert "Error" not in web.log, web.log


def test_the_guide_shows_these_commands() -> None:
    shown = "\n".join(code_blocks(DOCS / "guides" / "fork.rst", "console"))
    for words in COMMANDS.values():
        if words != COMMANDS["uwsgi without --enable-threads"]:
            assert " ".join(words) in shown, words
