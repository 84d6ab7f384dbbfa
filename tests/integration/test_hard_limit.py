"""``--hard-time-limit``: a process in which a handler hangs says so and ends."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gnsqsync import NsqdHTTP
from gnsqsync.cli import main
from gnsqsync.embedded import Nsqd
from tests.support.programs import Program
from tests.support.servers import unique

# A message hangs when it comes for the first time.
HANDLERS = """
import logging, os, time
from gnsqsync import TimeLimitInterrupt

def note(message):
    with open("handled", "a") as file:
        file.write(f"{message.body.decode()} {message.attempts} {os.getpid()}\\n")

def sleeps(message):
    if message.body == b"hangs" and message.attempts == 1:
        time.sleep(600)
    note(message)

def spins(message):
    while message.attempts == 1:
        pass
    note(message)

def holds_the_log(message):
    if message.attempts == 1:
        logging.basicConfig()
        logging.getLogger().handlers[0].acquire()
        time.sleep(600)
    note(message)

def goes_on(message):
    while message.attempts == 1:
        try:
            time.sleep(0.01)
        except TimeLimitInterrupt:
            continue
    note(message)
"""
PATCHED = """
from gevent import monkey
monkey.patch_all()
from gnsqsync.cli import main
raise SystemExit(main())
"""
GNSQSYNC = ["gnsqsync"]
ON_GEVENT = ["python", "patched.py"]


@pytest.fixture
def nsqd(emptied_nsqd: Nsqd) -> Nsqd:
    return emptied_nsqd


@contextmanager
def consuming(
    program: list[str], folder: Path, nsqd: Nsqd, handler: str, *words: str
) -> Iterator[Program]:
    """A consumer of one message, which hangs."""
    (folder / "jobs.py").write_text(HANDLERS)
    (folder / "patched.py").write_text(PATCHED)
    topic = unique("hard")
    with NsqdHTTP(nsqd.http_address) as http:
        http.create_topic(topic)
        http.create_channel(topic, "c")
        http.pub(topic, b"hangs")
    consumer = Program(
        [*program, "consume", topic, "c", f"jobs:{handler}", "-t", nsqd.tcp_address, *words],
        folder,
    )
    try:
        yield consumer
    finally:
        consumer.kill()


def handled(folder: Path) -> list[str]:
    path = folder / "handled"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize(
    ("program", "handler", "words", "line"),
    [
        (GNSQSYNC, "sleeps", [], "time.sleep(600)"),
        # Not even what it writes may be waited for.
        (GNSQSYNC, "holds_the_log", [], ""),
        # It catches the first limit.
        (GNSQSYNC, "goes_on", ["--time-limit", "0.2"], "time.sleep(0.01)"),
        (ON_GEVENT, "sleeps", [], "time.sleep(600)"),
        # No greenlet ever runs again, that of the main thread neither.
        (ON_GEVENT, "spins", [], "while message.attempts == 1:"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else value,
)
def test_a_process_with_a_handler_that_hangs_is_replaced(
    nsqd: Nsqd, tmp_path: Path, program: list[str], handler: str, words: list[str], line: str
) -> None:
    # After which nsqd gives it to another one.
    more = ["--processes", "2", "--hard-time-limit", "1", "--msg-timeout", "3", *words]
    with consuming(program, tmp_path, nsqd, handler, *more) as consumer:
        killed = consumer.wait_for(r"process (\d+) was killed by SIGKILL; another one takes")
        # By the other process, or the new one.
        consumer.eventually(lambda: handled(tmp_path))
        consumer.signal(signal.SIGTERM)
        text = consumer.end()
    (one,) = handled(tmp_path)
    body, attempts, pid = one.split()
    assert body == "hangs"
    assert int(attempts) > 1
    assert pid != killed[1]
    if line:
        said = re.search(
            rf"ERROR gnsqsync\.supervisor: \S+/c: handler jobs\.{handler} has run for 1\.\d s on"
            r" message [0-9a-f]{16} \(attempt 1\) from 127\.0\.0\.1:\d+; the hard limit is 1 s, so"
            r" this process ends\. The handler is at\n((?:  .*\n)+)",
            text,
        )
        assert said, text
        assert line in said[1]
        assert f"in {handler}\n" in said[1]


def test_a_process_alone_exits(nsqd: Nsqd, tmp_path: Path) -> None:
    with consuming(GNSQSYNC, tmp_path, nsqd, "sleeps", "--hard-time-limit", "0.5") as consumer:
        assert "the hard limit is 0.5 s" in consumer.end(1)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["0"], "--hard-time-limit is 0.0 seconds; allowed is 0.1 to 86400"),
        (["nan"], "--hard-time-limit is nan; it must be a number of seconds"),
        (
            ["5", "--time-limit", "5"],
            "--hard-time-limit is 5 s and time_limit of json:loads is 5 s; give a longer one, so"
            " that the handler is interrupted before",
        ),
    ],
)
def test_limits_that_are_not_allowed(
    capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert main(["consume", "t", "c", "json:loads", "--hard-time-limit", *words]) in (1, 2)
    assert text in " ".join(capsys.readouterr().err.split())
