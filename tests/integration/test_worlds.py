"""Reader and Writer in processes that gevent patched wholly, partly, early, late or not at all.

Each test is a script in an interpreter of its own. What a runtime does there is the business of
test_patched_worlds.py; here are whole round trips, signals, and what a user is told.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest

from tests.integration.conftest import address, url
from tests.support.forking import Nsqd
from tests.support.interpreter import ROOT, run_script
from tests.support.servers import Server, Site
from tests.support.waiting import eventually

USE = """
    import os, sys, time
    from gnsqsync import Reader, Writer
    from gnsqsync.errors import ConfigError

    def use(runtime=None):
        # A round trip; the name of what carried it.
        got = []
        writer = Writer(ADDRESS, runtime=runtime)
        writer.publish_many(TOPIC, [b"1", b"2"])
        reader = Reader(TOPIC, "ch", runtime=runtime, nsqd_tcp_addresses=ADDRESS, max_in_flight=2)
        for message in reader:
            message.finish()
            got.append(message.body)
            if len(got) == 2:
                reader.stop()
        assert sorted(got) == [b"1", b"2"], got
        assert reader.join(20).clean
        writer.close()
        print(reader._run.runtime.name)

    def refused(runtime=None):
        for attempt in (
            lambda: Writer(ADDRESS, runtime=runtime).publish(TOPIC, b"x"),
            lambda: Reader(TOPIC, "ch", print, nsqd_tcp_addresses=ADDRESS, runtime=runtime).start(),
        ):
            try:
                attempt()
            except ConfigError as error:
                print(error)
"""


@pytest.fixture
def where(nsqd: Server, topic: str) -> str:
    return f"ADDRESS, TOPIC = {address(nsqd)!r}, {topic!r}"


PATCH = """
    import gevent.monkey
    gevent.monkey.patch_all()
"""
# gevent warns of what was imported before, ssl above all.
PATCH_LATE = """
    import gevent.monkey, warnings
    warnings.simplefilter("ignore", gevent.monkey.MonkeyPatchWarning)
    gevent.monkey.patch_all()
"""
HALVES = {
    "socket": ("patch_all(thread=False)", "threading"),
    "threading": ("patch_all(socket=False)", "socket"),
}


def test_nothing_patched(where: str) -> None:
    out = run_script(
        where,
        USE,
        """
        use()
        assert not any(name.split(".")[0] == "gevent" for name in sys.modules)
        use("gevent")
        use("threads")
        """,
    )
    assert out.split() == ["threads", "gevent", "threads"]


def test_patched_before_the_import(where: str) -> None:
    assert run_script(where, PATCH, USE, "use(); use('gevent')").split() == ["gevent", "gevent"]


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.pairs
def test_patched_after_the_import_and_before_the_first_use(
    site: Site, topic: str, secure: bool
) -> None:
    """Objects that were made before the patch work after it, too: they hold nothing yet."""
    nsqd = site.nsqd(*site.certificates.flags) if secure else site.nsqd()
    options = {"tls": True, "tls_ca_file": str(site.certificates.ca_file)} if secure else {}
    out = run_script(
        f"ADDRESS, TOPIC, options = {address(nsqd)!r}, {topic!r}, {options!r}",
        USE,
        """
        writer = Writer(ADDRESS, **options)
        got = []
        reader = Reader(TOPIC, "other", got.append, nsqd_tcp_addresses=ADDRESS, **options)
        """,
        PATCH_LATE,
        """
        use()
        reader.start(block=False)
        while not reader.stats().connections:
            time.sleep(0.01)
        writer.publish(TOPIC, b"x")
        while len(got) < 1:
            time.sleep(0.01)
        reader.stop()
        assert reader.join(20).clean
        writer.close()
        """,
    )
    assert out == "gevent"


@pytest.mark.parametrize("half", list(HALVES))
@pytest.mark.pairs
def test_half_patched(where: str, half: str) -> None:
    """The error of Reader and Writer names the half, and the option that ends it."""
    call, other = HALVES[half]
    out = run_script(
        where,
        f"import gevent.monkey; gevent.monkey.{call}",
        USE,
        f"""
        refused()
        use("gevent")
        if {half == "socket"}:
            use("threads")
        else:
            refused("threads")
        """,
    )
    lines = out.splitlines()
    for line in lines[:2]:
        assert f"gevent has patched {half} but not {other}" in line
        assert "runtime='gevent'" in line
        assert ("runtime='threads'" in line) == (half == "socket")
    assert lines[2] == "gevent"
    if half == "socket":
        assert lines[3:] == ["threads"]
    else:
        assert len(lines) == 5
        assert all("threads are greenlets" in line for line in lines[3:])


@pytest.mark.parametrize("runtime", [None, "threads", "gevent"])
@pytest.mark.pairs
def test_patched_after_the_first_use(where: str, runtime: str | None) -> None:
    """Whoever is used then says what happened, a Writer that is connected, too."""
    out = run_script(
        where,
        USE,
        f"use({runtime!r})",
        PATCH_LATE,
        f"""
        refused({runtime!r})
        refused("gevent")
        """,
    )
    name, *lines = out.splitlines()
    assert name == (runtime or "threads")
    assert len(lines) == 4
    refusal = "threads are greenlets" if runtime == "threads" else "patched socket and threading"
    assert all(refusal in line for line in lines[:2])
    assert all("before the first start() or publish()" in line for line in lines[2:])


def test_a_handler_that_computes_stops_all_greenlets(nsqd: Server, topic: str) -> None:
    """The documented limit, and its way out: nsqd closes after two heartbeats without an answer,
    the message comes again; from gevent's pool of native threads the same work does no harm.
    """
    out = run_script(
        f"ADDRESS, TOPIC = {address(nsqd)!r}, {topic!r}",
        PATCH,
        USE,
        """
        import logging
        logging.disable(logging.CRITICAL)
        native_sleep = gevent.monkey.get_original("time", "sleep")
        answers = []

        def handler(message):
            if message.body == b"in the pool":
                gevent.get_hub().threadpool.apply(native_sleep, (3.5,))
            elif message.attempts == 1:
                native_sleep(3.5)
            # What was lost meanwhile is seen when the reading greenlet runs again.
            gevent.sleep(0.2)
            answers.append((message.body, message.attempts, message.finish()))

        reader = Reader(TOPIC, "ch", handler, nsqd_tcp_addresses=ADDRESS, heartbeat_interval=1,
                        msg_timeout=6)
        reader.start(block=False)
        writer = Writer(ADDRESS)
        for body in (b"in the pool", b"computed"):
            count = len(answers)
            writer.publish(TOPIC, body)
            while len(answers) == count or not answers[-1][2]:
                gevent.sleep(0.01)
        reader.stop()
        reader.join()
        writer.close()
        for answer in answers:
            print(*answer)
        """,
    )
    assert out.splitlines() == [
        "b'in the pool' 1 True",
        "b'computed' 1 False",
        "b'computed' 2 True",
    ]


def test_other_threads_are_told_that_greenlets_belong_to_one(where: str) -> None:
    """They may stop a Reader; what would make a connection is refused."""
    out = run_script(
        USE,
        where,
        """
        import gevent
        reader = Reader(TOPIC, "ch", print, nsqd_tcp_addresses=ADDRESS, runtime="gevent")
        reader.start(block=False)

        def elsewhere():
            try:
                reader.add_nsqd("127.0.0.1:1")
            except ConfigError as error:
                print(error)
            reader.stop()

        gevent.get_hub().threadpool.apply(elsewhere)
        print(reader.join(20).clean)
        """,
    )
    refused, clean = out.splitlines()
    assert "belongs to the OS thread that used it first" in refused
    assert clean == "True"


# -- signals ---------------------------------------------------------------------------------------

# A Reader that blocks in start() with one message in a handler and three that none has begun.
BLOCKING = """
    import signal
    begun = []
    def handler(message):
        begun.append(message)
        while reader.stats().in_flight < 4:
            SLEEP(0.01)
        print("busy", flush=True)
        # Told from outside when to go on, so that no greenlet or thread waits for the pipe.
        while not os.path.exists(GO):
            SLEEP(0.01)

    Writer(ADDRESS, runtime=RUNTIME).publish_many(TOPIC, [b"1", b"2", b"3", b"4"])
    reader = Reader(TOPIC, "ch", handler, nsqd_tcp_addresses=ADDRESS, max_in_flight=4,
                    runtime=RUNTIME)
    calls = []
    def on_signal(number, frame):
        calls.append(number)
        reader.stop(30 if len(calls) == 1 else 0)
    for number in HANDLED:
        signal.signal(number, on_signal)
    try:
        result = reader.start()
        print(result.unanswered, result.workers_running)
    except KeyboardInterrupt:
        result = reader.join()
        print("interrupted", result.unanswered, result.workers_running)
        sys.exit(130)
"""

# How a process gets into its world, its runtime, and how its handlers sleep.
SIGNAL_WORLDS = {
    "none": ("", None, "time.sleep"),
    "gevent unpatched": ("import gevent", "gevent", "gevent.sleep"),
    "patched": (PATCH, None, "time.sleep"),
    "threads beside patched sockets": (
        "import gevent.monkey; gevent.monkey.patch_socket()",
        "threads",
        "time.sleep",
    ),
}
# On greenlets KeyboardInterrupt is raised in whichever runs, so a handler is the way there.
HANDLED = {
    "none": {signal.SIGTERM},
    "gevent unpatched": {signal.SIGTERM, signal.SIGINT},
    "patched": {signal.SIGTERM, signal.SIGINT},
    "threads beside patched sockets": {signal.SIGTERM},
}


class Blocking:
    """The process of such a script."""

    def __init__(self, world: str, nsqd: Server, topic: str, go: str) -> None:
        patch, runtime, sleep = SIGNAL_WORLDS[world]
        handled = [int(number) for number in HANDLED[world]]
        source = [
            patch,
            USE,
            f"ADDRESS, TOPIC, GO = {address(nsqd)!r}, {topic!r}, {go!r}",
            f"RUNTIME, SLEEP, HANDLED = {runtime!r}, {sleep}, {handled}",
            BLOCKING,
        ]
        self._go = go
        self._nsqd = Nsqd(url(nsqd))
        self._topic = topic
        self.process = subprocess.Popen(
            [sys.executable, "-c", "\n".join(map(textwrap.dedent, source))],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A Ctrl-C of the desk is not for this one.
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "busy\n", self.process.communicate()

    def channel(self) -> Any:
        return self._nsqd.topic(self._topic)["channels"][0]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def waits(self) -> bool:
        """Whether the main thread sleeps, and takes no processor time for 20 ms."""
        stat = f"/proc/{self.process.pid}/task/{self.process.pid}/stat"

        def look() -> list[str]:
            with open(stat) as file:
                fields = file.read().rpartition(") ")[2].split()
            return [fields[0], *fields[11:13]]

        before = look()
        time.sleep(0.02)
        return before[0] == "S" and look() == before

    def go_on(self) -> None:
        with open(self._go, "x"):
            pass

    def end(self) -> tuple[int, str]:
        """The exit status and the last line."""
        out, err = self.process.communicate(timeout=60)
        assert "Traceback" not in err, err
        return self.process.returncode, out.strip()


@pytest.fixture(params=list(SIGNAL_WORLDS))
def world_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.pairs
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("times", ["once", "twice"])
def test_a_blocking_start_is_stopped_by_signals(
    world_name: str, nsqd: Server, topic: str, tmp_path: os.PathLike[str], number: Any, times: str
) -> None:
    """Once: the handler at work may finish, the rest goes back at once. Twice: it is forced."""
    go = os.path.join(tmp_path, "go")
    blocking = Blocking(world_name, nsqd, topic, go)
    try:
        blocking.signal(number)
        while blocking.channel()["depth"] != 3:
            assert blocking.process.poll() is None, blocking.end()
        assert blocking.channel()["in_flight_count"] == 1
        if times == "once":
            blocking.go_on()
        else:
            # In the middle of a send it would end the connection.
            eventually(blocking.waits, describe="the main thread waits for the handler")
            blocking.signal(number)
        status, line = blocking.end()
    finally:
        blocking.process.kill()
        blocking.process.communicate()
    left = "0 0" if times == "once" else "1 1"
    if number not in HANDLED[world_name]:
        assert (status, line) == (130, f"interrupted {left}")
    else:
        assert (status, line) == (0, left)
    channel = blocking.channel()
    assert channel["timeout_count"] == 0
    assert channel["depth"] == 3
    assert channel["clients"] in ([], None)
