"""The end of the interpreter with a Reader or a Writer open: no hang, no word, nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from tests.integration.conftest import url
from tests.support.forking import Nsqd
from tests.support.interpreter import ROOT, SILENT
from tests.support.scripts import WORLDS, prelude
from tests.support.servers import Server

# A hang, on a machine that is busy with other things.
TIMEOUT = 60.0

# Others by GNSQSYNC_TEST_PYTHONS, a path separated list; the package's dependencies must be there.
PYTHONS = [sys.executable]
PYTHONS += filter(None, os.environ.get("GNSQSYNC_TEST_PYTHONS", "").split(os.pathsep))


@pytest.fixture(params=PYTHONS, ids=os.path.basename)
def python(request: pytest.FixtureRequest) -> Iterator[str]:
    found = shutil.which(request.param)
    assert found is not None, request.param
    yield found


@pytest.fixture(params=WORLDS)
def begin(request: pytest.FixtureRequest, nsqd: Server, topic: str) -> str:
    return prelude(request.param, nsqd, topic)


def end(python: str, *parts: str, status: int = 0, error: str = "") -> list[str]:
    """Run a script to its end; the lines it printed. Nothing but ``error`` is on stderr."""
    source = "\n".join(textwrap.dedent(part) for part in parts)
    done = subprocess.run(
        [python, "-W", "error", "-c", f"{SILENT}\n{source}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == status, done.stderr
    if not error:
        assert done.stderr == ""
    else:
        assert done.stderr.count("Traceback") == 1, done.stderr
        assert done.stderr.rstrip().endswith(error), done.stderr
    return done.stdout.splitlines()


# A Reader with one message in a handler that does not end, one detached, and two not begun.
BUSY = """
    begun = []
    def handler(message):
        begun.append(message)
        if len(begun) == 1:
            message.detach()
        else:
            world.sleep(600)
    writer = Writer(address, runtime=runtime)
    writer.publish_many(topic, [b"1", b"2", b"3", b"4"])
    reader = Reader(topic, "ch", handler, nsqd_tcp_addresses=address, runtime=runtime,
                    max_in_flight=4)
    reader.start(block=False)
    world.eventually(lambda: len(begun) == 2 and reader.stats().in_flight == 4)
"""

ENDS = {
    "the last line": ("", 0, ""),
    "an exception": ("raise ValueError('of the user')", 1, "ValueError: of the user"),
    "sys.exit": ("sys.exit(7)", 7, ""),
    "a signal handler that exits": (
        """
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(9))
        os.kill(os.getpid(), signal.SIGTERM)
        world.sleep(30)
        """,
        9,
        "",
    ),
}


@pytest.mark.pairs
@pytest.mark.parametrize("how", list(ENDS))
def test_a_running_reader(python: str, begin: str, nsqd: Server, topic: str, how: str) -> None:
    """What it holds goes back at once, also what a handler has begun: that ends with the rest."""
    last, status, error = ENDS[how]
    end(python, begin, BUSY, last, status=status, error=error)
    channel = Nsqd(url(nsqd)).topic(topic)["channels"][0]
    figures = {key: channel[key] for key in ("depth", "in_flight_count", "deferred_count")}
    assert figures == {"depth": 4, "in_flight_count": 0, "deferred_count": 0}
    assert channel["requeue_count"] == 4
    assert channel["timeout_count"] == 0
    assert channel["clients"] in ([], None)


@pytest.mark.pairs
@pytest.mark.parametrize("how", ["the last line", "an exception", "sys.exit"])
def test_publishes_under_way(python: str, begin: str, nsqd: Server, topic: str, how: str) -> None:
    last, status, error = ENDS[how]
    end(
        python,
        begin,
        """
        writer = Writer(address, runtime=runtime)
        for n in range(500):
            future = writer.publish_async(topic, b"x" * 1000)
        """,
        last,
        status=status,
        error=error,
    )
    assert Nsqd(url(nsqd)).count(topic) == 500


@pytest.mark.pairs
def test_a_reader_that_nothing_was_delivered_to(python: str, begin: str) -> None:
    """In the dial, in the pause between two, and idle."""
    end(
        python,
        begin,
        """
        for addresses in (address, "127.0.0.1:1", [address, "127.0.0.1:1"]):
            reader = Reader(topic, "ch", print, nsqd_tcp_addresses=addresses, runtime=runtime,
                            lookupd_http_addresses="127.0.0.1:1")
            import logging
            logging.getLogger("gnsqsync").setLevel(logging.CRITICAL)
            reader.start(block=False)
        """,
    )


@pytest.mark.pairs
def test_functions_that_run_at_the_end(python: str, begin: str, nsqd: Server, topic: str) -> None:
    """One of before the first publish comes too late and is told so; a later one publishes."""
    out = end(
        python,
        begin,
        """
        import atexit
        writer = Writer(address, runtime=runtime)
        def early():
            try:
                writer.publish(topic, b"early")
            except ClosedError as error:
                print("early:", error)
        atexit.register(early)
        writer.publish(topic, b"first")
        atexit.register(lambda: (writer.publish(topic, b"late"), print("late")))
        """,
    )
    assert out == ["late", "early: the Writer is closed; make a new one to publish again"]
    assert Nsqd(url(nsqd)).count(topic) == 2


@pytest.mark.pairs
def test_a_writer_that_is_first_used_at_the_end(
    python: str, begin: str, nsqd: Server, topic: str
) -> None:
    """It publishes, or says at once that it cannot: Python may start no thread any more."""
    out = end(
        python,
        begin,
        """
        import atexit
        writer = Writer(address, runtime=runtime)
        def last():
            started = time.monotonic()
            try:
                writer.publish(topic, b"last")
                print("published")
            except NotSent as error:
                print(error)
            assert time.monotonic() - started < 15
        atexit.register(last)
        """,
    )
    if out != ["published"]:
        assert "can't create new thread at interpreter shutdown" in out[0]
    assert Nsqd(url(nsqd)).count(topic) == (out == ["published"])


def test_a_reader_of_another_thread(python: str, nsqd: Server, topic: str) -> None:
    """Native threads only: on greenlets a Reader belongs to the thread that started it."""
    out = end(
        python,
        prelude("threads", nsqd, topic),
        """
        import json
        got = []
        reader = Reader(topic, "ch", got.append, nsqd_tcp_addresses=address)
        thread = threading.Thread(target=lambda: reader.start(), daemon=True)
        thread.start()
        world.eventually(lambda: reader._run and reader.stats().connections)
        writer = Writer(address)
        writer.publish(topic, b"x")
        world.eventually(lambda: got)
        print(json.dumps(len(got)))
        """,
    )
    assert json.loads(out[0]) == 1
