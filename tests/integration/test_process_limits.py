"""``--max-messages`` and ``--max-memory``: a process that has done enough is replaced."""

from __future__ import annotations

import re
import signal
from collections import Counter
from pathlib import Path

import pytest

from gnsqsync import NsqdHTTP, Writer
from gnsqsync.embedded import Nsqd
from gnsqsync.errors import ConfigError
from gnsqsync.process.process_limits import ProcessLimits, memory_in_use
from tests.support.programs import Program
from tests.support.servers import unique

HANDLERS = """
import os

kept = []

def note(message):
    with open("handled", "a") as file:
        file.write(f"{message.body.decode()} {os.getpid()}\\n")

def leaks(message):
    kept.append(b"x" * 4 * 1024 * 1024)
    note(message)
"""


@pytest.fixture
def nsqd(emptied_nsqd: Nsqd) -> Nsqd:
    return emptied_nsqd


class Consumer:
    def __init__(self, folder: Path, nsqd: Nsqd) -> None:
        self._folder = folder
        self._nsqd = nsqd
        self._topic = unique("limits")
        (folder / "jobs.py").write_text(HANDLERS)
        with NsqdHTTP(nsqd.http_address) as http:
            http.create_topic(self._topic)
            http.create_channel(self._topic, "c")

    def depth(self) -> int:
        with NsqdHTTP(self._nsqd.http_address) as http:
            return http.stats(self._topic).topics[0].channels[0].depth

    def publish(self, first: int, count: int) -> None:
        with Writer(self._nsqd.tcp_address) as writer:
            writer.publish_many(self._topic, [b"%d" % n for n in range(first, first + count)])

    def start(self, handler: str, *words: str) -> Program:
        command = ["gnsqsync", "consume", self._topic, "c", f"jobs:{handler}"]
        return Program([*command, "-t", self._nsqd.tcp_address, *words], self._folder)

    def handled(self) -> list[tuple[str, str]]:
        path = self._folder / "handled"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(body, pid) for body, pid in map(str.split, lines)]


def test_processes_are_replaced_and_nothing_is_lost(nsqd: Nsqd, tmp_path: Path) -> None:
    consumer = Consumer(tmp_path, nsqd)
    consumer.publish(0, 200)
    program = consumer.start("note", "--processes", "2", "--max-messages", "50")
    try:
        program.wait_for(r"stopping, as it has handled \d+ messages \(--max-messages\)")
        published = 200
        # Until one has handled some that is none of the first two, which may take turns at first.
        while len({pid for _, pid in consumer.handled()}) <= 2 and published < 2000:
            consumer.publish(published, 200)
            published += 200
            program.eventually(lambda all=published: len(consumer.handled()) == all)
        assert len({pid for _, pid in consumer.handled()}) > 2
        assert "was killed" not in program.output
        program.signal(signal.SIGTERM)
        program.end()
    finally:
        program.kill()
    assert Counter(body for body, _ in consumer.handled()) == Counter(map(str, range(published)))


def test_one_alone_ends_with_0(nsqd: Nsqd, tmp_path: Path) -> None:
    consumer = Consumer(tmp_path, nsqd)
    consumer.publish(0, 20)
    program = consumer.start("note", "--max-messages", "10")
    output = program.end(0)
    told = re.search(r"stopping, as it has handled (\d+) messages", output)
    # The process looks once in a while. By then it may have handled more, or all.
    ended = re.search(r"(\d+) finished, \d+ requeued, 0 given up", output)
    assert told and ended, output
    assert 10 <= int(told[1]) <= int(ended[1]) == len(consumer.handled())
    assert consumer.depth() == 20 - int(ended[1])


def test_a_handler_that_leaks(nsqd: Nsqd, tmp_path: Path) -> None:
    consumer = Consumer(tmp_path, nsqd)
    consumer.publish(0, 60)
    program = consumer.start("leaks", "--processes", "2", "--max-memory", "120")
    try:
        program.wait_for(r"stopping, as it uses \d+ MB \(--max-memory 120\)")
        program.eventually(lambda: len(consumer.handled()) == 60)
        program.signal(signal.SIGTERM)
        program.end()
    finally:
        program.kill()


@pytest.mark.parametrize("processes", ["1", "2"])
def test_less_than_a_process_needs_is_told(nsqd: Nsqd, tmp_path: Path, processes: str) -> None:
    program = Consumer(tmp_path, nsqd).start("note", "--max-memory", "5", "--processes", processes)
    output = program.end(1)
    assert re.search(r"--max-memory is 5 MB, and this process has \d+ MB before its first", output)


def test_limits_that_are_not_allowed_are_refused() -> None:
    for wrong in (0, -1, True):
        with pytest.raises(ConfigError, match="--max-messages is"):
            ProcessLimits(wrong, None)
        with pytest.raises(ConfigError, match="--max-memory is"):
            ProcessLimits(None, wrong)
    assert ProcessLimits().watch([]).reason() is None


def test_memory_in_use_grows_with_a_block() -> None:
    before = memory_in_use()
    block = bytearray(64 * 1024 * 1024)
    assert memory_in_use() - before > 50 * 1024 * 1024
    del block
