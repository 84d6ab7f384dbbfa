"""What a Writer says of its threads: a stuck one is seen without a lock; a broker away is none."""

from __future__ import annotations

import re
import threading

import pytest
import requests

from gnsqsync import Observer, Writer
from gnsqsync.errors import PublishError
from gnsqsync.process.metrics_page import Exposed
from gnsqsync.writer import health
from tests.component.conftest import Client, Gate
from tests.support.scripted import (
    Command,
    Connection,
    ScriptedNsqd,
    automatic,
    silence,
    wait_until,
)

LATE = 0.3
READING = r"w: the thread that reads from 127.0.0.1:\d+ has been stuck for ([2-9]|\d\d) s"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LATE_SECONDS", LATE)
    monkeypatch.setattr(health, "_QUESTION_SECONDS", LATE)


class Held:
    """An nsqd whose OK comes when the Future has its callback, which then runs on the reading
    thread."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self.nsqd = ScriptedNsqd([automatic(hooks={"PUB": self._answer})])

    def _answer(self, connection: Connection, command: Command) -> None:
        wait_until(self._told)(connection)
        connection.answer(command)

    def hold_up(self, writer: Writer, gate: Gate) -> None:
        writer.publish_async("t", "x").add_done_callback(gate)
        self._told.set()


def says(client: Client, writer: Writer, line: str) -> None:
    """Wait until it says this line (a pattern) alone."""

    def is_all() -> bool:
        found = writer.health("w").stuck
        return len(found) == 1 and re.fullmatch(line, found[0]) is not None

    client.world.eventually(is_all, describe=lambda: writer.health("w").stuck)


def says_nothing(client: Client, writer: Writer) -> None:
    """Wait until it says nothing. A thread that only a busy machine holds up comes round."""
    client.world.eventually(lambda: writer.health("w").stuck == [])


def test_a_writer_that_lives_from_its_first_publish_to_its_end(client: Client) -> None:
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd)
        assert writer.health("w").stuck == []
        writer.publish("t", "x")
        client.world.sleep(2 * LATE)
        # Nobody publishes.
        says_nothing(client, writer)
        writer.close()
        assert writer.health("w").stuck == []


def test_a_callback_that_holds_the_reading_thread_up(client: Client, gate: Gate) -> None:
    held = Held()
    with held.nsqd as nsqd:
        writer = client.writer(nsqd, heartbeat_interval=1.0)
        held.hold_up(writer, gate)
        # Two heartbeats at least.
        says(client, writer, READING)
        gate.open()
        says_nothing(client, writer)


def test_a_connection_that_was_replaced_counts_no_more(client: Client, gate: Gate) -> None:
    held = Held()
    with held.nsqd as nsqd:
        writer = client.writer(nsqd, heartbeat_interval=1.0, publish_timeout=0.2)
        held.hold_up(writer, gate)
        says(client, writer, READING)

        def is_published() -> bool:
            try:
                writer.publish("t", "y")
            except PublishError:
                return False
            return True

        client.world.eventually(is_published)
        says_nothing(client, writer)


def test_an_nsqd_that_falls_silent_or_is_away_is_no_stuck_thread(client: Client) -> None:
    with ScriptedNsqd([automatic(until="PUB"), silence()]) as nsqd:
        writer = client.writer(nsqd, heartbeat_interval=1.0)
        writer.connect()
        nsqd.refuse_connections()
        # Two heartbeats of silence end it.
        client.world.eventually(lambda: not writer.is_connected)
        client.world.sleep(2 * LATE)
        says_nothing(client, writer)


def test_a_poll_thread_that_a_hook_holds_up(client: Client, gate: Gate) -> None:
    class Holding(Observer):
        def lookup_failed(self, url: str, error: Exception) -> None:
            gate()

    where = "127.0.0.1:1"
    writer = client.keep(
        Writer(
            lookupd_http_addresses=where,
            lookupd_poll_interval=0.05,
            observer=Holding(),
            runtime=client.world.runtime,
        )
    )
    with pytest.raises(PublishError):
        writer.publish("t", "x", timeout=0.1)
    says(client, writer, rf"w: the thread that asks http://{where} has been stuck for \d+ s")


@pytest.mark.reality("a web server of its own thread serves the page")
def test_the_page_names_the_writer(client: Client, gate: Gate) -> None:
    said: list[str] = []
    held = Held()
    with held.nsqd as nsqd:
        writer = client.writer(nsqd, heartbeat_interval=1.0)
        with Exposed("0").serve([], 0, said.append, lambda: {"default": writer}):
            page = said[0].split()[-1].replace("/metrics", "/livez")
            assert requests.get(page, timeout=30).text == "alive\n"
            held.hold_up(writer, gate)
            says(client, writer, READING)
            answer = requests.get(page, timeout=30)
        assert answer.status_code == 503
        assert answer.text.startswith("the Writer default: the thread that reads from 127.0.0.1:")
