"""What each command prints where nobody has configured logging: a project as it is made by default.

A handler that raises, an nsqd that is away, a relay that is stuck: each is seen, and told once.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnsqsync import NsqdHTTP, Writer
from tests.integration.conftest import address
from tests.support.forks import Forks
from tests.support.interpreter import run_script
from tests.support.programs import Program
from tests.support.servers import Server, Site

EMBEDDED = pytest.mark.parametrize("server_kind", ["embedded"])

TIME = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "

# Three channels of one topic, of which one handler raises what it is sent.
HANDLERS = """
def store(message):
    if message.body == b"bad":
        raise ValueError("the disk is full")

def mail(message):
    pass

def count(message):
    pass
"""
DJANGO_HANDLERS = f"""
from gnsqsync.django import nsq_handler
{HANDLERS}
for function in (store, mail, count):
    nsq_handler("orders", function.__name__)(function)
"""
FLASK = f"""
import os
from flask import Flask
from gnsqsync.flask import NSQ
{HANDLERS}
app = Flask(__name__)
app.config["NSQ_NSQD_ADDRESSES"] = os.environ["ADDRESS"]
nsq = NSQ(app)
for function in (store, mail, count):
    nsq.handler("orders", function.__name__)(function)
"""
SETTINGS = """
import os
INSTALLED_APPS += ["gnsqsync.django", "gnsqsync.django.outbox", "shop"]
GNSQSYNC = {"default": {
    "NSQD": os.environ.get("ADDRESS", "127.0.0.1:1"), "OPTIONS": {"publish_timeout": 0.3},
}}
"""

DISABLING = """
from gnsqsync import Reader
LOGGING = {
    "version": 1,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": "WARNING"},
}
"""
ERRORS_ONLY = """
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"file": {"class": "logging.FileHandler", "filename": "log", "level": "ERROR"}},
    "root": {"handlers": ["file"], "level": "WARNING"},
}
"""

Run = Callable[..., Program]


@pytest.fixture
def nsqd(site: Site) -> Server:
    return site.own_nsqd()


@pytest.fixture
def run(tmp_path: Path, forks: Forks) -> Iterator[Run]:
    """Start a program in the folder of the test, as a fork or by a Python of its own."""
    programs: list[Program] = []

    def start(*words: str, own: bool = False, **environment: str) -> Program:
        programs.append(Program(words, tmp_path, environment, forks=None if own else forks))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()


@pytest.fixture(scope="module")
def new_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``django-admin startproject`` with our apps, and nothing about logging."""
    folder = tmp_path_factory.mktemp("new_project")
    make = [sys.executable, "-m", "django", "startproject", "site_of_shop", "."]
    subprocess.run(make, cwd=folder, check=True)
    settings = folder / "site_of_shop" / "settings.py"
    settings.write_text(settings.read_text() + SETTINGS)
    (folder / "shop").mkdir()
    (folder / "shop" / "__init__.py").touch()
    (folder / "shop" / "nsq_handlers.py").write_text(DJANGO_HANDLERS)
    return folder


@pytest.fixture
def project(new_project: Path, tmp_path: Path) -> Path:
    """A copy of it, which the test may change."""
    shutil.copytree(new_project, tmp_path, dirs_exist_ok=True)
    return tmp_path


COMMANDS = {
    "django": ["python", "manage.py", "nsq_consume"],
    "flask": ["flask", "--app", "shop_app", "nsq", "consume"],
    "cli": ["gnsqsync", "consume", "orders", "store", "handlers:store"],
}


@pytest.fixture(params=COMMANDS)
def consume(
    request: pytest.FixtureRequest, tmp_path: Path, run: Run, nsqd: Server
) -> Callable[..., Program]:
    """Each of the commands that consume, beside nsqd."""
    kind: str = request.param
    words = COMMANDS[kind]
    if kind == "django":
        request.getfixturevalue("project")
    elif kind == "flask":
        (tmp_path / "shop_app.py").write_text(FLASK)
    else:
        (tmp_path / "handlers.py").write_text(HANDLERS)
        words = [*words, "-t", address(nsqd)]
    return lambda *options, own=False: run(*words, *options, own=own, ADDRESS=address(nsqd))


def consumers(nsqd: Server) -> dict[str, int]:
    """Count the connections that ask for messages, by channel: they have read the answer to SUB."""
    with NsqdHTTP("{}:{}".format(*nsqd.http_address)) as http:
        topics = http.stats("orders").topics
    channels = [channel for topic in topics for channel in topic.channels]
    return {
        channel.channel_name: sum(client.ready_count > 0 for client in channel.clients or ())
        for channel in channels
    }


def publish_what_fails(nsqd: Server, command: Program) -> None:
    """To the handler store. Before its channel is there only others might get the message."""
    command.eventually(lambda: "store" in consumers(nsqd))
    with Writer(address(nsqd)) as writer:
        writer.publish("orders", "bad")


def warnings(program: Program) -> list[str]:
    """Its lines with a time, without it; but for that at the start on what waits in nsqd."""
    return [
        re.sub(TIME, "", line)
        for line in program.output.splitlines()
        if re.match(TIME + "(WARNING|ERROR)", line) and "(max_attempts) or later" not in line
    ]


@EMBEDDED
@pytest.mark.parametrize("options", [[], ["--processes", "2"], ["--reload"]], ids=" ".join)
def test_a_failing_handler_is_shown(
    consume: Callable[..., Program], nsqd: Server, options: list[str]
) -> None:
    # Without options it is the program of a user, which has imported nothing before.
    command = consume(*options, own=not options)
    publish_what_fails(nsqd, command)
    command.wait_for("ValueError: the disk is full")
    (failed,) = warnings(command)
    assert re.fullmatch(
        r"WARNING gnsqsync.reader: orders/store: handler [a-z_.]*store failed on message"
        rf" [0-9a-f]{{16}} \(attempt 1\) from {address(nsqd)}; requeued, comes again in"
        r" 9\d(?:\.\d)? s",
        failed,
    )
    assert "Traceback (most recent call last):" in command.output
    command.signal(signal.SIGTERM)
    command.end()


@EMBEDDED
@pytest.mark.parametrize("processes", [1, 2])
def test_an_outage_is_a_line_at_each_end_for_each_process(
    consume: Callable[..., Program], nsqd: Server, processes: int
) -> None:
    command = consume("--processes", str(processes))
    readers = 1 if "gnsqsync" in command.words else 3
    command.eventually(lambda: sum(consumers(nsqd).values()) == readers * processes)
    # nsqd knows of a consumer before the consumer does.
    command.eventually(lambda: command.output.count(" consumes orders/") == readers * processes)
    nsqd.kill()
    command.eventually(lambda: len(warnings(command)) == processes)
    # Long enough for some dials of each.
    with pytest.raises(subprocess.TimeoutExpired):
        command.process.wait(5)
    begins = warnings(command)
    assert len(begins) == processes
    for begin in begins:
        assert f"lost {address(nsqd)}: " in begin
        assert "; it is dialled again in " in begin
        if readers == 3:
            assert "3 consumers of this process use it: orders/" in begin
    nsqd.start()
    command.eventually(lambda: len(warnings(command)) == 2 * processes)
    for end in warnings(command)[processes:]:
        assert re.search(f"{address(nsqd)} is back after [0-9.]+ s; orders/", end)
    command.signal(signal.SIGTERM)
    command.end()
    assert len(warnings(command)) == 2 * processes


@EMBEDDED
def test_a_stuck_relay_says_so(project: Path, run: Run, nsqd: Server) -> None:
    environment = {"ADDRESS": address(nsqd)}
    run("python", "manage.py", "migrate", **environment).end()
    nsqd.kill()
    fill = (
        "from gnsqsync.django import outbox; outbox.publish_many('orders', ['a'] * 12, using=None)"
    )
    run("python", "manage.py", "shell", "-c", fill, **environment).end()
    relay = run("python", "manage.py", "nsq_relay", **environment)
    relay.wait_for("gnsqsync.outbox")
    # The next tries tell nothing new.
    with pytest.raises(subprocess.TimeoutExpired):
        relay.process.wait(4)
    about_nsqd, stuck = warnings(relay)
    assert "a Writer: cannot connect to" in about_nsqd
    assert re.search(
        r"WARNING gnsqsync.outbox: outbox of default: publishing over 'default' fails: .*;"
        r" trying again in 0.[0-9] s; 12 waiting, the oldest for [0-9.]+ s; 0 failed",
        stuck,
    )
    nsqd.start()
    relay.wait_for("publishing over 'default' works again after [0-9.]+ s; ")
    relay.signal(signal.SIGTERM)
    assert "12 published" in relay.end()


@EMBEDDED
def test_a_handler_of_ones_own_gets_the_lines(
    project: Path, run: Run, nsqd: Server, tmp_path: Path
) -> None:
    """Whenever it was made: here by a module that the command imports."""
    handlers = tmp_path / "shop" / "nsq_handlers.py"
    handlers.write_text(
        "import logging; logging.basicConfig(format='mine: %(message)s')\n" + handlers.read_text()
    )
    command = run("python", "manage.py", "nsq_consume", ADDRESS=address(nsqd))
    publish_what_fails(nsqd, command)
    command.wait_for("mine: orders/store: handler shop.nsq_handlers.store failed on message")
    assert command.output.count("failed on message") == 1
    command.signal(signal.SIGTERM)
    command.end()


def test_django_checks_that_failures_are_logged(project: Path, run: Run, tmp_path: Path) -> None:
    assert "W005" not in run("python", "manage.py", "check").end()
    settings = tmp_path / "site_of_shop" / "settings.py"
    default = settings.read_text()
    settings.write_text(default + "\nDEBUG = False\nALLOWED_HOSTS = ['*']\n")
    # A project that has just begun is no production: newer Djangos find errors, as of its mails.
    told = run("python", "manage.py", "check", "--deploy", "--fail-level", "CRITICAL").end()
    assert "?: (gnsqsync.W005) The logger 'gnsqsync' has no handler" in told
    assert '"loggers": {"gnsqsync": {"handlers": ["console"]' in told
    # The commands show the log by themselves, and tests are no production.
    assert "W005" not in run("python", "manage.py", "nsq_consume", "--list").end()
    assert "W005" not in run("python", "manage.py", "test").end()
    # As the hint says it.
    logging = re.search(r"^ +LOGGING = \{.*?^ {4,}\}$", told, re.MULTILINE | re.DOTALL)
    assert logging is not None
    lines = [line.strip() for line in logging[0].splitlines()]
    settings.write_text(settings.read_text() + "\n" + "\n".join(lines) + "\n")
    assert "W005" not in run("python", "manage.py", "check").end()


@EMBEDDED
def test_logging_that_would_hide_failures_is_reported_and_hides_none(
    project: Path, run: Run, tmp_path: Path, nsqd: Server
) -> None:
    settings = tmp_path / "site_of_shop" / "settings.py"
    default = settings.read_text()
    # Loggers that the settings made by an import are disabled, whatever DEBUG says; and handlers
    # may take errors only.
    for hidden, lines in (
        ("LOGGING disables loggers that exist before it", DISABLING),
        ("No handler takes warnings of the logger 'gnsqsync'", ERRORS_ONLY),
    ):
        settings.write_text(default + lines)
        told = run("python", "manage.py", "check").end()
        assert f"(gnsqsync.W005) {hidden}" in told
    command = run("python", "manage.py", "nsq_consume", ADDRESS=address(nsqd))
    publish_what_fails(nsqd, command)
    command.wait_for("ValueError: the disk is full")
    command.signal(signal.SIGTERM)
    command.end()
    shown = [line for line in command.output.splitlines() if "failed on message" in line]
    assert len(shown) == 1
    assert re.match(TIME + "WARNING gnsqsync.reader: orders/store", shown[0])


@EMBEDDED
def test_a_reader_of_a_program_without_any_setup_is_heard(nsqd: Server) -> None:
    out = run_script(
        f"address = {address(nsqd)!r}",
        """
        import io, sys, threading
        sys.stderr = io.StringIO()
        from gnsqsync import Reader, Writer

        failed = threading.Event()
        def store(message):
            failed.set()
            raise ValueError("the disk is full")

        with Writer(address) as writer:
            writer.publish("zero", "x")
        with Reader("zero", "shop", store, nsqd_tcp_addresses=address):
            assert failed.wait(10)
        print(sys.stderr.getvalue())
        """,
        shows_log=True,
    )
    assert "zero/shop: handler __main__.store failed on message" in out
    assert out.endswith("ValueError: the disk is full")
