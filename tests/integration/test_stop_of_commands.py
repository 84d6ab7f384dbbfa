"""SIGTERM under load, for each command that consumes, with one process and with two.

Handlers finish, the rest is at nsqd at once, nothing is handled twice; a second signal forces.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnsqsync import NsqdHTTP
from tests.integration.conftest import address, url
from tests.support.forks import Forks
from tests.support.programs import Program
from tests.support.servers import Server, unique

# For any of the commands: what is begun and done is a line each, in one write.
JOBS = """
import os, time

def note(text):
    with open("notes", "ab", 0) as file:
        file.write(f"{text}\\n".encode())

def work(message):
    note(f"begun {message.body.decode()} {os.getpid()}")
    time.sleep(float(os.environ["SECONDS"]))
    note(f"done {message.body.decode()} {os.getpid()}")
"""
FLASK = """
import os
from flask import Flask
from gnsqsync.flask import NSQ
from jobs import work

app = Flask(__name__)
app.config["NSQ_NSQD_ADDRESSES"] = os.environ["ADDRESS"]
nsq = NSQ(app)
nsq.handler(os.environ["TOPIC"], "c")(work)
"""
DJANGO = {
    "manage.py": """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
""",
    "settings.py": """
import os
SECRET_KEY = "for these tests"
USE_TZ = True
INSTALLED_APPS = ["gnsqsync.django", "shop"]
GNSQSYNC = {"default": {"NSQD": os.environ["ADDRESS"]}}
""",
    "shop/__init__.py": "",
    "shop/nsq_handlers.py": """
import os
from gnsqsync.django import nsq_handler
from jobs import work
nsq_handler(os.environ["TOPIC"], "c")(work)
""",
}
COMMANDS = {
    "django": ["python", "-W", "error", "manage.py", "nsq_consume"],
    "flask": ["python", "-W", "error", "-m", "flask", "--app", "site_", "nsq", "consume"],
    "cli": ["python", "-W", "error", "-m", "gnsqsync.cli", "consume", "{topic}", "c", "jobs:work"],
}
CONCURRENCY, MAX_IN_FLIGHT = 2, 30


class Consumer:
    """One of the commands in a folder with its handler, beside a topic of its own."""

    def __init__(self, name: str, folder: Path, nsqd: Server, forks: Forks) -> None:
        self._forks = forks
        self.topic = unique("stop")
        self._nsqd = nsqd
        self._folder = folder
        self._words = [word.format(topic=self.topic) for word in COMMANDS[name]]
        if name == "cli":
            self._words += ["-t", address(nsqd)]
        for path, text in {"jobs.py": JOBS, "site_.py": FLASK, **DJANGO}.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        self._running: list[Program] = []

    def start(self, *words: str, seconds: float) -> Program:
        options = ["--concurrency", str(CONCURRENCY), "--max-in-flight", str(MAX_IN_FLIGHT)]
        environment = {
            "ADDRESS": address(self._nsqd),
            "TOPIC": self.topic,
            "SECONDS": str(seconds),
        }
        words = (*self._words, *options, *words)
        program = Program(words, self._folder, environment, forks=self._forks)
        self._running.append(program)
        return program

    def fill(self, count: int) -> None:
        with NsqdHTTP(url(self._nsqd)) as http:
            http.create_topic(self.topic)
            http.create_channel(self.topic, "c")
            http.mpub(self.topic, [b"%d" % n for n in range(count)])

    def notes(self, word: str) -> list[str]:
        """The messages that have this note."""
        path = self._folder / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[1] for line in lines if line.startswith(word)]

    def pids(self) -> set[int]:
        return {int(line.split()[2]) for line in (self._folder / "notes").read_text().splitlines()}

    def channel(self) -> Any:
        with NsqdHTTP(url(self._nsqd)) as http:
            return http.stats(self.topic).topics[0].channels[0]

    def close(self) -> None:
        for program in self._running:
            program.kill()
        shutil.rmtree(self._folder)


@pytest.fixture(params=COMMANDS)
def consumer(
    request: pytest.FixtureRequest, tmp_path: Path, nsqd: Server, forks: Forks
) -> Iterator[Consumer]:
    consumer = Consumer(request.param, tmp_path, nsqd, forks)
    yield consumer
    consumer.close()


pytestmark = pytest.mark.parametrize("server_kind", ["real"])


@pytest.mark.parametrize("processes", [1, 2])
def test_a_signal_under_load(consumer: Consumer, processes: int) -> None:
    consumer.fill(200)
    program = consumer.start("--processes", str(processes), seconds=0.5)
    # All are at work, and each has more in hand.
    program.eventually(lambda: len(consumer.notes("begun")) >= CONCURRENCY * processes)
    program.eventually(lambda: consumer.channel().in_flight_count == MAX_IN_FLIGHT * processes)
    program.eventually(lambda: consumer.notes("done"))
    assert len(consumer.pids()) == processes
    program.signal(signal.SIGTERM)
    output = program.end(0)
    begun, done = consumer.notes("begun"), consumer.notes("done")
    assert sorted(begun) == sorted(done)
    assert "Traceback" not in output
    channel = consumer.channel()
    # At once: nothing is in flight, nothing deferred, and nothing has waited for its timeout.
    assert (channel.depth, channel.in_flight_count) == (200 - len(done), 0)
    assert (channel.deferred_count, channel.timeout_count) == (0, 0)
    again = consumer.start("--processes", str(processes), seconds=0.0)
    again.eventually(lambda: len(consumer.notes("done")) == 200)
    again.signal(signal.SIGTERM)
    again.end(0)
    assert max(Counter(consumer.notes("begun")).values()) == 1


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_closed_terminal(consumer: Consumer, processes: int) -> None:
    """SIGHUP to all processes, twice, as the kernel and the shell send it."""
    consumer.fill(100)
    program = consumer.start("--processes", str(processes), seconds=0.5)
    program.eventually(lambda: len(consumer.notes("begun")) >= CONCURRENCY * processes)
    for _ in range(2):
        os.killpg(program.process.pid, signal.SIGHUP)
    output = program.end(0)
    begun, done = consumer.notes("begun"), consumer.notes("done")
    assert sorted(begun) == sorted(done)
    assert "Traceback" not in output
    channel = consumer.channel()
    assert (channel.depth, channel.in_flight_count) == (100 - len(done), 0)
    assert channel.timeout_count == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_a_second_signal_forces(consumer: Consumer, processes: int) -> None:
    consumer.fill(100)
    program = consumer.start("--processes", str(processes), seconds=600)
    at_work = CONCURRENCY * processes
    program.eventually(lambda: len(consumer.notes("begun")) == at_work)
    program.signal(signal.SIGTERM)
    # What nobody has begun is given back; the handlers are waited for.
    program.eventually(lambda: consumer.channel().depth == 100 - at_work)
    program.signal(signal.SIGTERM)
    output = program.end(1)
    left = f"stopped with {CONCURRENCY} messages unanswered and {CONCURRENCY} handlers at work"
    assert output.splitlines().count(left) == processes
    # Those come again after their timeout: what their handlers did is not known.
    assert consumer.channel().in_flight_count == at_work
