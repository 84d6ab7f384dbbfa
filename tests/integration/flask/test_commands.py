"""flask nsq consume, publish and stat as processes, against an nsqd."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import requests

from gnsqsync import NsqdHTTP
from tests.integration.conftest import address, url
from tests.integration.flask.conftest import Flask
from tests.support.servers import Server, unique

TERM, INT = signal.SIGTERM, signal.SIGINT

# An application; what it is told by the environment makes it quick to test.
SHOP = """
import os, time
from flask import Flask, current_app
from gnsqsync.flask import NSQ

nsq = NSQ()
topic = os.environ["FLASK_TOPIC"]

def note(text):
    with open("notes", "a") as notes:
        notes.write(text + chr(10))

@nsq.handler(topic, "work", concurrency=2, max_in_flight=10)
def work(message):
    note(f"begun {message.body.decode()} {os.getpid()} {current_app.name}")
    time.sleep(float(os.environ.get("FLASK_SECONDS", 0)))
    note("done version 1")

@nsq.handler("another", "work")
def other(message):
    pass

def create_app():
    app = Flask("shop")
    app.config.from_prefixed_env()
    nsq.init_app(app)
    return app
"""


class Shop:
    def __init__(self, folder: Path, nsqd: Server, flask: Flask) -> None:
        self.folder = folder
        self.topic = unique("flask")
        self._http = url(nsqd)
        self._flask = flask
        self._environment = {
            "FLASK_APP": "shop",
            "FLASK_TOPIC": self.topic,
            "FLASK_NSQ_NSQD_ADDRESSES": address(nsqd),
            "FLASK_NSQ_NSQD_HTTP_ADDRESSES": self._http,
        }
        (folder / "shop.py").write_text(SHOP)

    def __call__(self, *words: str, stdin: bytes = b"", **environment: str) -> Any:
        return self._flask("nsq", *words, stdin=stdin, **{**self._environment, **environment})

    def fill(self, count: int) -> None:
        with NsqdHTTP(self._http) as http:
            http.create_topic(self.topic)
            http.create_channel(self.topic, "work")
            http.mpub(self.topic, [str(n).encode() for n in range(count)])

    def notes(self, word: str) -> list[str]:
        path = self.folder / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(word)]

    def channel(self) -> Any:
        with NsqdHTTP(self._http) as http:
            return http.stats(self.topic).topics[0].channels[0]


@pytest.fixture
def shop(tmp_path: Path, nsqd: Server, flask: Flask) -> Shop:
    return Shop(tmp_path, nsqd, flask)


def test_published_consumed_and_shown(shop: Shop) -> None:
    shop.fill(3)
    assert f"2 published to {shop.topic}" in shop("publish", shop.topic, "a", "b").end()
    lines = shop("publish", shop.topic, stdin=b"c\n\nd\r\n")
    command = shop("consume", "work")
    assert "2 published" in lines.end()
    command.wait_for(f"work consumes {shop.topic}/work")
    command.eventually(lambda: len(shop.notes("done")) == 7)
    command.signal(TERM)
    output = command.end()
    assert "work: 7 finished, 0 requeued, 0 given up" in output
    assert output.endswith("stopped\n")
    assert all(line.endswith(" shop") for line in shop.notes("begun"))
    stat = json.loads(shop("stat", shop.topic, "--json").end())
    work = {"depth": 0, "in_flight": 0, "deferred": 0, "messages": 7, "clients": 0, "ready": 0}
    assert stat == {
        "topics": {shop.topic: {"depth": 0, "messages": 7, "channels": {"work": work}}},
        "failures": [],
    }


def test_several_processes(shop: Shop) -> None:
    shop.fill(40)
    command = shop(
        "consume", "work", "--processes", "2", "--max-in-flight", "2", FLASK_SECONDS="0.1"
    )
    command.eventually(lambda: len({line.split()[2] for line in shop.notes("begun")}) == 2)
    # A terminal sends it to all of them; the children leave it to their parent.
    os.killpg(command.process.pid, INT)
    output = command.end()
    assert len(re.findall("^stopped$", output, re.MULTILINE)) == 2
    assert "Traceback" not in output
    assert shop.channel().in_flight_count == 0


def test_a_time_limit_ends_the_handler_and_not_its_context(shop: Shop) -> None:
    (shop.folder / "shop.py").write_text(
        SHOP.replace("concurrency=2", "time_limit=0.2, requeue_delay=0, max_backoff_duration=0")
        .replace(
            'time.sleep(float(os.environ.get("FLASK_SECONDS", 0)))',
            "while message.attempts == 1: time.sleep(0.01)",
        )
        .replace(
            "    nsq.init_app(app)",
            "    nsq.init_app(app)\n"
            "    @app.teardown_appcontext\n"
            "    def end(error):\n"
            "        time.sleep(0.4)\n"
            "        note(f'context ended by {type(error).__name__}')",
        )
    )
    shop.fill(1)
    command = shop("consume", "work")
    command.eventually(lambda: len(shop.notes("context ended")) == 2)
    command.signal(TERM)
    assert "work: 1 finished, 1 requeued" in command.end()
    # And then that of the command.
    assert shop.notes("context ended")[:2] == [
        "context ended by TimeLimitExceeded",
        "context ended by NoneType",
    ]


def test_reload(shop: Shop) -> None:
    shop.fill(1)
    command = shop("consume", "--topic", shop.topic, "--reload")
    command.eventually(lambda: shop.notes("done version 1"))
    (shop.folder / "shop.py").write_text(SHOP.replace("version 1", "version 2"))
    command.wait_for(r"shop\.py changed; starting again(.|\n)*work consumes")
    shop.fill(1)
    command.eventually(lambda: shop.notes("done version 2"))
    os.killpg(command.process.pid, INT)
    command.end()


def test_metrics_and_an_observer(shop: Shop) -> None:
    (shop.folder / "watching.py").write_text(
        "from gnsqsync import Observer\n"
        "from shop import note\n"
        "class Noting(Observer):\n"
        "    def __init__(self, topic, channel): self.channel = channel\n"
        "    def connected(self, nsqd_address): note(f'connected {self.channel}')\n"
    )
    shop.fill(3)
    command = shop(
        "consume", "work", "--metrics-address", "0", FLASK_NSQ_OBSERVER="watching.Noting"
    )
    page = command.wait_for(r"metrics at (http://127\.0\.0\.1:\d+/metrics)")[1]
    labels = f'channel="work",outcome="finished",topic="{shop.topic}"'
    line = f"gnsqsync_messages_total{{{labels}}} 3.0"
    command.eventually(lambda: line in requests.get(page, timeout=60).text)
    assert shop.notes("connected") == ["connected work"]
    assert 'gnsqsync_writer_connections{writer="default"}' in requests.get(page, timeout=60).text
    command.signal(TERM)
    command.end()


def test_health_asks_consume(shop: Shop) -> None:
    command = shop("consume", "work", "--metrics-address", "0", "--handler-limit", "600")
    page = command.wait_for(r"metrics at (http://\S+)/metrics")[1]
    command.eventually(lambda: requests.get(f"{page}/readyz", timeout=60).status_code == 200)
    alive = shop("health", "--address", page)
    ready = shop("health", "--address", page, "--ready")
    assert alive.end() == f"{page}/livez: alive\n"
    assert ready.end() == f"{page}/readyz: ready\n"
    command.signal(TERM)
    command.end()
    gone, wrong = shop("health", "--address", page), shop("health", "--address", "x")
    assert gone.end(1) == f"{page}/livez: Connection refused\n"
    assert "the metrics address is 'x'; it must be PORT" in wrong.end(1)


def test_error_is_one_sentence(shop: Shop) -> None:
    commands = {
        "no handler is called 'wrok'; there are work, other": shop("consume", "wrok"),
        "no handler for channel x; --list shows all": shop("consume", "--channel", "x"),
        "ended by itself: ": shop("consume", "work", FLASK_NSQ_OPTIONS='{"tls": true}'),
        "did you mean 'NSQ_OPTIONS'?": shop("consume", FLASK_NSQ_OPTION='{"tls": true}'),
        "0 published to t, then: ": shop(
            "publish", "t", "x", "--timeout", "0.1", FLASK_NSQ_NSQD_ADDRESSES="127.0.0.1:1"
        ),
        "NSQ_OBSERVER is 'shop.nothing'": shop("consume", FLASK_NSQ_OBSERVER="shop.nothing"),
        "cannot consume: the backend is 'memory'": shop("consume", "work", FLASK_TESTING="true"),
        "cannot consume: the backend is 'eager'": shop("consume", FLASK_NSQ_BACKEND="eager"),
        "must be PORT or HOST:PORT": shop("consume", "--metrics-address", "x:y"),
        "no such topic 'nobody' on 1 nsqd": shop("stat", "nobody"),
        "127.0.0.1:1": shop("stat", FLASK_NSQ_NSQD_HTTP_ADDRESSES="127.0.0.1:1"),
    }
    listed = shop("consume", "--list")
    for text, command in commands.items():
        assert text in command.end(1)
    rows = [line.split() for line in listed.end().splitlines()]
    assert rows == [
        ["name", "topic", "channel", "function"],
        ["work", shop.topic, "work", "shop.work"],
        ["other", "another", "work", "shop.other"],
    ]


def test_the_doctor_says_why_messages_wait(shop: Shop) -> None:
    shop.fill(2)
    output = shop("doctor", shop.topic, "--seconds", "0.2").end(1)
    assert f"error   {shop.topic}/work: No consumer is connected to the channel; 2 mess" in output
    found = json.loads(shop("doctor", "nobody", "--seconds", "0.2", "--json").end(1))
    assert [each["kind"] for each in found["findings"]] == ["no_such_topic"]


def test_dead_letters_are_listed_and_sent_back(shop: Shop, nsqd: Server) -> None:
    dead = f"{shop.topic}.dead"
    with NsqdHTTP(url(nsqd)) as http:
        http.pub(dead, b"one")
        assert "(no headers)" in shop("dead-letters", "list", dead).end()
        assert "name one" in shop("dead-letters", "requeue", dead).end(1)
        output = shop("dead-letters", "requeue", dead, "--to", shop.topic).end()
        assert "1 letter requeued; 1 letter looked at" in output
        assert http.stats(shop.topic).topics[0].message_count == 1
    captured = shop("dead-letters", "list", dead, FLASK_NSQ_BACKEND="memory").end(1)
    assert "reaches no nsqd" in captured
