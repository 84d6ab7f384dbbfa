"""The applications of docs/examples, started by the one line that the page of each gives.

Knows the pages, and that an application runs its parts as child processes; knows no browser.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gnsqsync import NsqdHTTP
from tests.support.programs import Program
from tests.support.texts import EXAMPLES, ROOT, code_blocks


def line_of(name: str) -> str:
    """What starts it from a clean checkout: the first line of its page's first console block."""
    block = code_blocks(EXAMPLES / f"{name}.rst", "console")[0]
    return block.strip().splitlines()[0].removeprefix("$ ")


class Application(Program):
    """One that runs; ``folder`` is where it makes its temporary folder."""

    def __init__(self, name: str, folder: Path) -> None:
        # The environment is that of the tests, in place of the one that the line makes.
        words = shlex.split(line_of(name).rpartition("&&")[2])
        temporary = folder / "temporary"
        temporary.mkdir()
        super().__init__(
            [words[0].removeprefix(".venv/bin/"), *words[1:]],
            folder,
            {"TMPDIR": str(temporary)},
            cwd=ROOT,
        )
        self.temporary = temporary
        self.url = ""

    def wait_until_it_runs(self) -> None:
        self.url = self.wait_for(r"(?m)^The \w+ is at (http://127\.0\.0\.1:\d+)/", 120)[1]
        self.wait_for(r"consumes \w+/\w+")

    @property
    def data(self) -> Path:
        """The folder with its database."""
        (folder,) = self.temporary.iterdir()
        return folder

    def parts(self) -> dict[int, list[str]]:
        """Its child processes, with their command lines."""
        return children_of(self.process.pid)

    def part(self, word: str) -> int:
        """The process whose command line has that word, or the one in its place."""

        def look() -> list[int]:
            return [pid for pid, words in self.parts().items() if word in words]

        (pid,) = self.eventually(look)
        return int(pid)

    @contextmanager
    def frozen(self, word: str) -> Iterator[None]:
        """Inside of the ``with`` that part does nothing; it does not notice."""
        pid = self.part(word)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def kill_part(self, word: str) -> None:
        """SIGKILL; returns when another one is in its place."""
        before = self.part(word)
        os.kill(before, signal.SIGKILL)
        self.eventually(lambda: before not in self.parts() and self.part(word))

    def topic(self, name: str) -> Any:
        """What its nsqd says of a topic; None before the first message."""
        with self._nsqd() as http:
            topics = http.stats(name).topics
        return topics[0] if topics else None

    def publish(self, topic: str, body: bytes) -> None:
        """As a stranger may."""
        with self._nsqd() as http:
            http.pub(topic, body)

    def _nsqd(self) -> NsqdHTTP:
        (words,) = (words for words in self.parts().values() if "gnsqsync.cli" in words)
        (address,) = (word for word in words if word.startswith("--http-address="))
        return NsqdHTTP(address.partition("=")[2])

    def stop(self, number: signal.Signals) -> None:
        """As a user does it. Checks that it ends with exit code 0, and that nothing is left."""
        parts = [*self.parts()]
        assert parts, self.output
        self.signal(number)
        output = self.end(0)
        assert "Traceback" not in output
        assert [pid for pid in parts if Path(f"/proc/{pid}").exists()] == []
        assert [*self.temporary.iterdir()] == []

    def kill(self) -> None:
        """It and its parts, if they still run; each has a session of its own."""
        parts = [*self.parts()]
        super().kill()
        for pid in parts:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@contextmanager
def running(name: str, folder: Path) -> Iterator[Application]:
    """One that is ready; whatever still runs in the end is killed."""
    application = Application(name, folder)
    try:
        application.wait_until_it_runs()
        yield application
    finally:
        application.kill()


def children_of(pid: int) -> dict[int, list[str]]:
    found = {}
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in children.read_text().split():
                line = Path(f"/proc/{child}/cmdline").read_text()
                found[int(child)] = line.split("\0")
        except OSError:
            continue  # one of them has just ended
    return found
