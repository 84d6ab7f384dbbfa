"""The processes of ``gnsqsync to-file`` and the Go nsq_to_file, and the files that they write.

Knows their command lines and folders, and the ports of an nsqd.
"""

from __future__ import annotations

import gzip
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from tests.support import realnsq
from tests.support.programs import Program
from tests.support.rawclient import channel_stats, mpub_body, post
from tests.support.servers import Server
from tests.support.waiting import eventually

OURS, THEIRS = "ours", "theirs"
TOOLS = (OURS, THEIRS)


class Tool:
    """A program with its own folder and channel, so that each of the two gets all messages.

    In the flags WORK stands for its work folder. ``program``: words
    that stand for ``gnsqsync``.
    """

    def __init__(
        self,
        which: str,
        folder: Path,
        *flags: str,
        program: Sequence[str] = ("python", "-W", "error", "-m", "gnsqsync.cli"),
    ) -> None:
        self.which = which
        self.channel = which
        self.folder = folder
        self.out = folder / "out"
        self.work = folder / "work"
        folder.mkdir(exist_ok=True)
        words = [*program, "to-file"]
        if which == THEIRS:
            words = [str(realnsq.program("nsq_to_file"))]
        self.words = [*words, f"--channel={which}", f"--output-dir={self.out}"]
        self.words += [flag.replace("WORK", str(self.work)) for flag in flags]
        self.runs: list[Program] = []

    def start(self) -> Program:
        run = Program(self.words, self.folder)
        self.runs.append(run)
        return run

    def stop(self, number: signal.Signals = signal.SIGTERM) -> str:
        """Stop it as a service manager does. Return its output. It must exit with 0."""
        run = self.runs[-1]
        run.eventually(lambda: run.handles(number))
        run.signal(number)
        return run.end()

    def kill(self) -> None:
        """Kill the last run, as in a crash."""
        self.runs[-1].kill()

    def has_open(self, folder: Path) -> bool:
        """Return True if the running process has a file of the folder open. Linux only."""
        for link in Path(f"/proc/{self.runs[-1].process.pid}/fd").iterdir():
            try:
                if os.readlink(link).startswith(f"{folder}/"):
                    return True
            except FileNotFoundError:  # The process has just closed the file.
                continue
        return False

    def close(self) -> None:
        for run in self.runs:
            run.kill()


def contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files below a folder by name, uncompressed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            name = str(path.relative_to(folder))
            found[name] = gzip.decompress(data) if name.endswith(".gz") else data
    return found


def lines(*folders: Path) -> list[bytes]:
    """Return the lines of all files. Each file must end with a whole line."""
    found: list[bytes] = []
    for folder in folders:
        for name, data in contents(folder).items():
            assert not data or data.endswith(b"\n"), f"{name} ends with {data[-40:]!r}"
            found += data.splitlines()
    return found


def make_channels(nsqd: Server, topic: str, *channels: str) -> None:
    """Make the channels before any message, so that each of them gets every message."""
    assert post(nsqd.http_address, f"/topic/create?topic={topic}").status == 200
    for channel in channels:
        made = post(nsqd.http_address, f"/channel/create?topic={topic}&channel={channel}")
        assert made.status == 200


def publish(nsqd: Server, topic: str, bodies: Sequence[bytes]) -> None:
    """Publish the bodies in one request."""
    reply = post(nsqd.http_address, f"/mpub?topic={topic}&binary=true", mpub_body(bodies))
    assert reply.status == 200, reply


def wait_until_finished(nsqd: Server, topic: str, channel: str, count: int) -> None:
    """Wait until the channel got ``count`` messages and none of them is left."""

    def finished() -> bool:
        now = channel_stats(nsqd.http_address, topic, channel)
        left = now["depth"] + now["in_flight_count"] + now["deferred_count"]
        return bool(now["message_count"] >= count and not left)

    eventually(
        finished, describe=lambda: channel_stats(nsqd.http_address, topic, channel), pause=0.05
    )
