"""A program that a test starts. Its output goes to a file, and it ends with the test.

Knows processes. Knows no server, no framework and no nsqd.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, AnyStr, TypeVar

from tests.support.forks import Fork, Forks
from tests.support.texts import ROOT
from tests.support.waiting import LIMIT, eventually

T = TypeVar("T")


class Mortal(subprocess.Popen[AnyStr]):
    """A process that dies when its ``with`` block fails.

    Popen waits for the end of the process even then. A test that has run out of time would hang for
    ever, and with it the whole run.
    """

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, error, trace)


class Program:
    """A running program and its output so far.

    ``words[0]`` may be "python" or a program beside the Python of the tests. ``folder``: folder of
    the output, and of the program if ``cwd`` is not given. ``stdin``: its input. The program finds
    the package even if it is not installed. It leads a session of its own, so that ``os.killpg()``
    acts like Ctrl-C at a terminal, and no worker outlives ``kill()``. With ``forks``, the program
    is a fork of a process that has imported its modules: ``gnsqsync``, ``flask``, or a script or a
    module of Python. Warnings are errors in a fork.
    """

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        environment: dict[str, str] | None = None,
        *,
        stdin: bytes = b"",
        cwd: Path | None = None,
        forks: Forks | None = None,
    ) -> None:
        self.words = list(words)
        self._forks = forks
        program, *arguments = words if forks is None else _of_a_fork(words)
        # An absolute path stays unchanged.
        beside = Path(sys.executable).parent / program
        if program == "python":
            program = sys.executable
        elif forks is None and beside.exists():
            program = str(beside)
        number = len(list(folder.glob("output *")))
        self._path = folder / f"output {number}"
        source = folder / f"input {number}"
        source.write_bytes(stdin)
        self._path.touch()
        whole = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
        self.process = self._start([program, *arguments], cwd or folder, whole, source)

    def _start(
        self, words: list[str], folder: Path, environment: dict[str, str], source: Path
    ) -> subprocess.Popen[bytes] | Fork:
        if self._forks is not None:
            return self._forks.start(words, folder, environment, [source, self._path, self._path])
        with open(self._path, "ab") as output, open(source, "rb") as lines:
            return subprocess.Popen(
                words,
                cwd=folder,
                stdin=lines,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._path.read_text(errors="replace")

    def wait_for(self, pattern: str, timeout: float = LIMIT) -> re.Match[str]:
        """Wait until the output has a match. Return the match."""
        found = self.eventually(lambda: re.search(pattern, self.output), timeout)
        assert found is not None
        return found

    def eventually(
        self, look: Callable[[], T], timeout: float = LIMIT, *, pause: float = 0.02
    ) -> T:
        """Return the first true result of ``look`` while the program runs."""

        def look_while_it_runs() -> T:
            result = look()
            if not result:
                assert self.process.poll() is None, f"{self.words} ended:\n{self.output}"
            return result

        return eventually(look_while_it_runs, timeout, describe=self._goes_on, pause=pause)

    def _goes_on(self) -> str:
        return f"{self.words}, which goes on:\n{self.output}"

    def handles(self, number: signal.Signals) -> bool:
        """Return True if the program handles this signal by now. Linux only."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        caught = re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
        return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, code: int = 0, timeout: float = LIMIT) -> str:
        """Wait for the end with this exit code. Return the output."""
        try:
            assert self.process.wait(timeout) == code, self.output
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.words} does not end:\n{self.output}") from None
        return self.output

    def kill(self) -> None:
        """Kill the program and all processes of its session."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


# Programs as modules of Python.
_MODULES = {"gnsqsync": "gnsqsync.cli", "flask": "flask"}


def _of_a_fork(words: Sequence[str]) -> list[str]:
    """Return a script and its arguments, or "-m", a module and its arguments."""
    program, *arguments = words
    if module := _MODULES.get(program):
        return ["-m", module, *arguments]
    if program == "python":
        if arguments[:2] == ["-W", "error"]:
            del arguments[:2]
        program, *arguments = arguments
    assert program == "-m" or program.endswith(".py"), f"{words} cannot be a fork"
    return [program, *arguments]


# uWSGI looks for modules in the prefix of its build without this variable.
UWSGI = {"UWSGI_VIRTUALENV": sys.prefix} if sys.prefix != sys.base_prefix else {}
# gunicorn's control socket has a fixed path, on which two test sessions would collide.
GUNICORN = {"GUNICORN_CMD_ARGS": "--no-control-socket"}
