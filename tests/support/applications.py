"""The applications of docs/examples, started by the line on the page of each.

Knows the pages, and that an application runs its parts as child processes. Knows no browser.
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
    """Return the line that starts it from a clean checkout: the first console line of its page."""
    block = code_blocks(EXAMPLES / f"{name}.rst", "console")[0]
    return block.strip().splitlines()[0].removeprefix("$ ")


class Application(Program):
    """A running application. It makes its temporary folder in ``folder``."""

    def __init__(self, name: str, folder: Path) -> None:
        # The line would make an environment, but the application uses that of the tests.
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
        """Return the child processes with their command lines."""
        return children_of(self.process.pid)

    def part(self, word: str) -> int:
        """Return the process whose command line has that word, after a restart the new one."""

        def look() -> list[int]:
            return [pid for pid, words in self.parts().items() if word in words]

        (pid,) = self.eventually(look)
        return int(pid)

    @contextmanager
    def frozen(self, word: str) -> Iterator[None]:
        """Stop the part (SIGSTOP) inside of the ``with``."""
        pid = self.part(word)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def kill_part(self, word: str) -> None:
        """Kill the part (SIGKILL). Return when another process has taken its place."""
        before = self.part(word)
        os.kill(before, signal.SIGKILL)
        self.eventually(lambda: before not in self.parts() and self.part(word))

    def topic(self, name: str) -> Any:
        """Return the nsqd's figures of a topic, or None before the first message."""
        with self._nsqd() as http:
            topics = http.stats(name).topics
        return topics[0] if topics else None

    def publish(self, topic: str, body: bytes) -> None:
        """Publish a body over HTTP, as a stranger may."""
        with self._nsqd() as http:
            http.pub(topic, body)

    def _nsqd(self) -> NsqdHTTP:
        (words,) = (words for words in self.parts().values() if "gnsqsync.cli" in words)
        (address,) = (word for word in words if word.startswith("--http-address="))
        return NsqdHTTP(address.partition("=")[2])

    def stop(self, number: signal.Signals) -> None:
        """Stop it as a user does. Check that it exits with 0 and leaves nothing behind."""
        parts = [*self.parts()]
        assert parts, self.output
        self.signal(number)
        output = self.end(0)
        assert "Traceback" not in output
        assert [pid for pid in parts if Path(f"/proc/{pid}").exists()] == []
        assert [*self.temporary.iterdir()] == []

    def kill(self) -> None:
        """Kill it and its parts, if they run. Each part has a session of its own."""
        parts = [*self.parts()]
        super().kill()
        for pid in parts:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@contextmanager
def running(name: str, folder: Path) -> Iterator[Application]:
    """Yield a ready application. At the end kill it and its parts, if they still run."""
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
            continue  # The process has just ended.
    return found
