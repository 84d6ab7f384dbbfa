"""``python -m tests.chaos.restarts``: many quick restarts of one consumer, then a count.

Each delivery raises a message's attempts, so restarts alone bring them above any limit, without a
handler that ever failed. A cell is a way to restart, a world and a max_in_flight, with a real nsqd
of its own. The exit status is 1 when a message is neither handled nor in nsqd, and 2 when it
cannot run.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gnsqsync import Message, NsqdHTTP, Observer, Reader
from tests.support import realnsq
from tests.support.servers import ROOT, Server
from tests.support.worlds import World

TOPIC, CHANNEL = "orders", "billing"
HOWS = ("stop", "kill", "reload")
WORLDS = ("threads", "gevent")
IN_FLIGHT = (1, 5, 40, 1000)
# How long a consumer that is connected may work until it is restarted, in seconds. A reload comes
# when the command next looks at its files.
ALIVE = {"stop": 0.2, "kill": 0.2, "reload": 0.5}
# nsqd times out what a killed consumer had; one that stops gives it back itself.
MSG_TIMEOUT = {"stop": "60s", "kill": "250ms", "reload": "60s"}
# A handler is slower than what would handle all messages just in the time of the restarts.
SLOWER = 1.2
WAIT_SECONDS = 60.0
JOBS = """
import os, time

SEEN = os.open(os.environ["SEEN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def handle(message):
    time.sleep(float(os.environ["HANDLER_SECONDS"]))
    os.write(SEEN, b"%s %d\\n" % (message.body, message.attempts))
"""


class Cell(NamedTuple):
    how: str
    world: str
    in_flight: int
    restarts: int
    messages: int

    @property
    def handler_seconds(self) -> float:
        return SLOWER * ALIVE[self.how] * self.restarts / self.messages

    def __str__(self) -> str:
        return f"{self.how:<6}  {self.world:<7}  max_in_flight {self.in_flight:>4}"


class Result(NamedTuple):
    cell: Cell
    # Handled at least once when the restarts were over, and in nsqd then; some may be in both.
    handled_before: int
    waiting: int
    lost: int
    repeated: int
    # The most that a handler saw.
    attempts: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.cell}: {self.cell.restarts} restarts, {self.handled_before} handled and"
            f" {self.waiting} in nsqd, then all; {self.lost} of {self.cell.messages} lost,"
            f" {self.repeated} repeated, attempts up to {self.attempts}, {self.seconds:.0f} s"
        )


class Field:
    """The nsqd of a cell, its messages, and what the handlers wrote."""

    def __init__(self, cell: Cell, nsqd: Server, folder: Path) -> None:
        self.cell = cell
        self.world = World(cell.world)
        self.address = "{}:{}".format(*nsqd.tcp_address)
        self.folder = folder
        self.seen = folder / "seen"
        self._http = "http://{}:{}".format(*nsqd.http_address)
        self._file = os.open(self.seen, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._bodies = [b"%d" % number for number in range(cell.messages)]
        with NsqdHTTP(self._http) as http:
            http.mpub(TOPIC, self._bodies)

    def reader(self, seconds: float, observer: Observer | None = None) -> Reader:
        def handle(message: Message) -> None:
            self.world.sleep(seconds)
            os.write(self._file, b"%s %d\n" % (message.body, message.attempts))

        return Reader(
            TOPIC, CHANNEL, handle, nsqd_tcp_addresses=self.address, runtime=self.cell.world,
            max_in_flight=self.cell.in_flight, observer=observer,
        )  # fmt: skip

    def waiting(self) -> int:
        """Messages in nsqd, at whatever place."""
        with NsqdHTTP(self._http) as http:
            (topic,) = http.stats(TOPIC).topics
        return topic.depth + sum(
            channel.depth + channel.in_flight_count + channel.deferred_count
            for channel in topic.channels
        )

    def handled(self) -> collections.Counter[bytes]:
        return collections.Counter(line.split()[0] for line in self._lines())

    def attempts(self) -> int:
        return max(int(line.split()[1]) for line in self._lines())

    def lost(self) -> int:
        return len(set(self._bodies) - self.handled().keys())

    def _lines(self) -> list[bytes]:
        return self.seen.read_bytes().splitlines()

    def close(self) -> None:
        os.close(self._file)


class Connected(Observer):
    """Writes a byte when it is."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def connected(self, nsqd_address: str) -> None:
        os.write(self._pipe, b"c")


def restart_by_stop(field: Field) -> None:
    for _ in range(field.cell.restarts):
        reader = field.reader(field.cell.handler_seconds)
        reader.start(block=False)
        field.world.eventually(lambda: reader.stats().connections, WAIT_SECONDS)  # noqa: B023
        field.world.sleep(ALIVE["stop"])
        reader.stop()
        reader.join()


def restart_by_kill(field: Field) -> None:
    for _ in range(field.cell.restarts):
        here, there = os.pipe()
        pid = os.fork()
        if not pid:
            with contextlib.suppress(BaseException):
                field.reader(field.cell.handler_seconds, Connected(there)).start()
            os._exit(1)
        os.close(there)
        with open(here, "rb") as pipe:
            # Nothing at its end: the child ended before it was connected.
            connected = pipe.read(1)
        time.sleep(ALIVE["kill"])
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert connected


def restart_by_reload(field: Field) -> None:
    jobs = field.folder / "jobs.py"
    jobs.write_text(JOBS)
    program = ["gnsqsync.cli", "consume", TOPIC, CHANNEL, "jobs:handle", "-t", field.address]
    program += ["--reload", "--max-in-flight", str(field.cell.in_flight)]
    patched = ["gevent.monkey", "--module"] if field.cell.world == "gevent" else []
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "SEEN": str(field.seen),
        "HANDLER_SECONDS": str(field.cell.handler_seconds),
    }  # fmt: skip
    with subprocess.Popen(
        [sys.executable, "-m", *patched, *program],
        cwd=field.folder, env=environment, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        for _ in range(field.cell.restarts):
            wait_for(b" consumes ", process.stderr)
            time.sleep(ALIVE["reload"])
            jobs.touch()
        wait_for(b" consumes ", process.stderr)
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    assert process.returncode == 0, process.returncode


def wait_for(word: bytes, lines: Iterable[bytes]) -> None:
    text = b""
    for line in lines:
        text += line
        if word in line:
            return
    raise AssertionError(text.decode(errors="replace"))


RESTART = {"stop": restart_by_stop, "kill": restart_by_kill, "reload": restart_by_reload}


def run(cell: Cell) -> Result:
    """All restarts of a cell, and then one consumer that takes its time."""
    started = time.monotonic()
    flags = [f"-msg-timeout={MSG_TIMEOUT[cell.how]}"]
    nsqd = Server("real", "nsqd", flags)
    try:
        nsqd.start()
        with tempfile.TemporaryDirectory(prefix="restarts-") as folder:
            field = Field(cell, nsqd, Path(folder))
            try:
                RESTART[cell.how](field)
                handled, waiting = len(field.handled()), field.waiting()
                with field.reader(0.0):
                    field.world.eventually(lambda: not field.waiting(), WAIT_SECONDS)
                repeated = sum(field.handled().values()) - len(field.handled())
                return Result(
                    cell, handled, waiting, field.lost(), repeated, field.attempts(),
                    time.monotonic() - started,
                )  # fmt: skip
            finally:
                field.close()
    finally:
        nsqd.discard()


def run_all(cells: Sequence[Cell], side_by_side: int) -> Iterator[Result]:
    """Each in a process of its own, which has no thread when it forks."""
    with multiprocessing.get_context("spawn").Pool(side_by_side, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(run, cells)


def arguments(argv: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.restarts",
        description="Restart a consumer of a real nsqd again and again, then count.",
    )
    parser.add_argument("--how", action="append", choices=HOWS, help="may be repeated")
    parser.add_argument("--world", action="append", choices=WORLDS, help="may be repeated")
    parser.add_argument("--in-flight", action="append", type=int, metavar="N", help="may, too")
    parser.add_argument("--restarts", type=int, default=60, help="of each cell; 60 by default")
    parser.add_argument("--messages", type=int, default=1000, help="of each; 1000 by default")
    parser.add_argument("--side-by-side", type=int, default=3, help="cells at a time; 3")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    chosen = arguments(argv)
    try:
        realnsq.find_or_build()
    except realnsq.Unavailable as error:
        print(error, file=sys.stderr)
        return 2
    axes = (chosen.how or HOWS, chosen.world or WORLDS, chosen.in_flight or IN_FLIGHT)
    cells = [Cell(*axis, chosen.restarts, chosen.messages) for axis in itertools.product(*axes)]
    lost = restarts = 0
    for result in run_all(cells, min(chosen.side_by_side, len(cells))):
        print(result, flush=True)
        lost += result.lost
        restarts += result.cell.restarts
    print(f"{len(cells)} cells, {restarts} restarts, {lost} messages lost")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
