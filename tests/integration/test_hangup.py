"""A closed terminal, ``kill -HUP`` and ``nohup``, for programs that run until they are stopped."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import django
import pytest

from gnsqsync import NsqdHTTP
from tests.integration.conftest import address, url
from tests.support.programs import Program
from tests.support.servers import Server, Site, unique

GNSQSYNC = ["python", "-m", "gnsqsync.cli"]
NSQD = [*GNSQSYNC, "nsqd", "-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"]
PATCHED = (
    "from gevent import monkey; monkey.patch_all();"
    " import sys; from gnsqsync.cli import main; sys.exit(main())"
)

CONSUME = [*GNSQSYNC, "consume", "{topic}", "c", "builtins:repr", "-t", "{tcp}"]

pytestmark = pytest.mark.usefixtures("hangups")
embedded = pytest.mark.parametrize("server_kind", ["embedded"])

Start = Callable[..., Program]

NEEDS_DJANGO_6 = pytest.mark.skipif(
    django.VERSION < (6,), reason="Django has tasks since version 6"
)

DJANGO = Path(__file__).parent / "django" / "project"
MANAGE = ["python", "manage.py"]
# An application with an outbox and a handler.
FLASK = """
from flask import Flask
from sqlalchemy import MetaData, create_engine

from gnsqsync.contrib.sqlalchemy import Outbox
from gnsqsync.flask import NSQ

nsq = NSQ()
metadata = MetaData()
engine = create_engine("sqlite:///outbox.sqlite3")
outbox = Outbox(metadata, lambda: nsq.writer, engine=lambda: engine)


@nsq.handler("hup", "c")
def handle(message):
    pass


def create_app():
    app = Flask("flask_shop")
    app.config.from_prefixed_env()
    app.config["NSQ_OUTBOX"] = "flask_shop.outbox"
    nsq.init_app(app)
    metadata.create_all(engine)
    return app
"""
NSQ_OF_FLASK = ["python", "-m", "flask", "--app", "flask_shop", "nsq"]
# Standard input stays open, as that of a program that waits for lines.
PUB = [
    "sh",
    "-c",
    "mkfifo lines; exec 3<>lines; exec {python} -m gnsqsync.cli pub hup -t {tcp} <&3",
]


@pytest.fixture
def nsqd(site: Site) -> Server:
    """An nsqd for this test alone: its programs consume topics that other tests publish to."""
    return site.own_nsqd()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Program] = []

    def start(words: Sequence[str], **environment: str) -> Program:
        running.append(Program(words, tmp_path, environment))
        return running[-1]

    yield start
    for program in running:
        program.kill()


def filled(words: Sequence[str], nsqd: Server) -> list[str]:
    places = {
        "python": sys.executable,
        "topic": unique("hup"),
        "tcp": address(nsqd),
        "http": url(nsqd).removeprefix("http://"),
    }
    return [word if word == PATCHED else word.format(**places) for word in words]


def http_of(program: Program) -> NsqdHTTP:
    return NsqdHTTP(f"http://{program.wait_for('HTTP: listening on ([0-9.:]+)')[1]}")


def test_the_embedded_nsqd_keeps_its_messages(start: Start, tmp_path: Path) -> None:
    words = [*NSQD, f"-data-path={tmp_path}"]
    program = start(words)
    with http_of(program) as http:
        http.create_topic("t")
        http.create_channel("t", "c")
        http.mpub("t", [b"%d" % number for number in range(50)])
    for _ in range(2):
        program.signal(signal.SIGHUP)
    program.end(0)
    with http_of(start(words)) as http:
        assert http.stats("t").topics[0].channels[0].depth == 50


@embedded
@pytest.mark.parametrize(
    "words",
    [
        NSQD,
        [*GNSQSYNC, "tail", "{topic}", "-t", "{tcp}"],
        [*CONSUME, "--processes", "2"],
        [*CONSUME, "--reload"],
    ],
    ids=str,
)
def test_nohup(start: Start, nsqd: Server, words: list[str]) -> None:
    program = start(["nohup", sys.executable, *filled(words, nsqd)[1:]])
    program.eventually(lambda: program.handles(signal.SIGTERM))
    assert not program.handles(signal.SIGHUP)
    os.killpg(program.process.pid, signal.SIGHUP)
    program.signal(signal.SIGTERM)
    assert "SIGHUP" not in program.end(0)


@embedded
@pytest.mark.parametrize(
    "words",
    [
        [*GNSQSYNC, "nsqlookupd", "-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"],
        [*GNSQSYNC, "nsqadmin", "-http-address=127.0.0.1:0", "-nsqd-http-address=127.0.0.1:1"],
        [*GNSQSYNC, "cluster", "--free-ports"],
        [*GNSQSYNC, "exporter", "--listen", "127.0.0.1:0"],
        [*GNSQSYNC, "stat", "-H", "{http}"],
        [*GNSQSYNC, "tail", "{topic}", "-t", "{tcp}"],
        CONSUME,
        [*CONSUME, "--processes", "2"],
        [*CONSUME, "--reload"],
        ["python", "-c", PATCHED, *CONSUME[3:]],
    ],
    ids=str,
)
def test_a_hangup_ends_each_program(start: Start, nsqd: Server, words: list[str]) -> None:
    program = start(filled(words, nsqd))
    program.eventually(lambda: program.handles(signal.SIGHUP))
    for _ in range(2):
        program.signal(signal.SIGHUP)
    assert "Traceback" not in program.end(0)


@embedded
@pytest.mark.parametrize(
    ("words", "begun", "is_cut"),
    [
        ([*MANAGE, "nsq_relay"], "publishing the outbox", False),
        ([*MANAGE, "nsq_consume", "shop.store_order"], "consumes", False),
        pytest.param([*MANAGE, "nsq_tasks"], "consumes", False, marks=NEEDS_DJANGO_6),
        ([*NSQ_OF_FLASK, "relay"], "publishing NSQ_OUTBOX", False),
        ([*NSQ_OF_FLASK, "consume"], "consumes", False),
        # Both commands have an end of their own, so a signal cuts them short.
        (PUB, "", True),
        ([*GNSQSYNC, "demo"], "nsqds at", True),
    ],
    ids=["nsq_relay", "nsq_consume", "nsq_tasks", "flask-relay", "flask-consume", "pub", "demo"],
)
def test_a_hangup_ends_a_program_as_sigterm_does(
    start: Start, nsqd: Server, tmp_path: Path, words: list[str], begun: str, is_cut: bool
) -> None:
    environment = {"SHOP_NSQD": address(nsqd), "FLASK_NSQ_NSQD_ADDRESSES": address(nsqd)}
    if words[:2] == MANAGE:
        shutil.copytree(DJANGO, tmp_path, dirs_exist_ok=True)
        start([*MANAGE, "migrate", "--run-syncdb", "-v0"], **environment).end()
    (tmp_path / "flask_shop.py").write_text(FLASK)
    for number in (signal.SIGTERM, signal.SIGHUP):
        program = start(filled(words, nsqd), **environment)
        program.eventually(partial(program.handles, signal.SIGHUP))
        program.wait_for(begun)
        program.signal(number)
        assert "Traceback" not in program.end(128 + number if is_cut else 0)
        (tmp_path / "lines").unlink(missing_ok=True)
