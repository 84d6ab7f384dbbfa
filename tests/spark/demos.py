"""``gnsqsync demo --spark`` as a process of its own, watched by what it prints."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from tests.spark.processes import Family
from tests.support.waiting import eventually

TIMEOUT = 200.0
# Seconds from Ctrl-C to the end.
LIMIT = 3.0


class Run:
    """One run of the demo as a process of its own, in a session of its own as at a terminal."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.log = folder / "log"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        # In a session of its own, so that a signal can go to all that a terminal's Ctrl-C reaches.
        session = "import os, sys; os.setsid(); os.execv(sys.executable, sys.argv[1:])"
        command = [sys.executable, "-c", session]
        command += [sys.executable, "-m", "gnsqsync.cli", "demo", "--spark", *arguments]
        environment = {"TMPDIR": str(self.temporary), "PYTHONUNBUFFERED": "1"}
        self.family = Family(command, environment, self.log)

    @property
    def text(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        def is_there() -> bool:
            found = text in self.text
            assert found or self.family.process.poll() is None, self.text
            return found

        eventually(is_there, TIMEOUT, describe=lambda: f"no {text!r} in:\n{self.text}")

    def wait_until_gone(self) -> None:
        """Nobody of the family lives some seconds after its end."""
        eventually(lambda: not self.family.pids(), 20, describe=lambda: f"{self.family.pids()}")

    def interrupt(self) -> float:
        """Ctrl-C; the seconds until the end, when all is as it must be."""
        before = len(self.text)
        began = time.monotonic()
        os.killpg(self.family.process.pid, signal.SIGINT)
        code = self.family.process.wait(TIMEOUT)
        seconds = time.monotonic() - began
        said = self.text[before:]
        assert code == 128 + signal.SIGINT, self.text
        assert said.endswith("stopped before the end\n"), self.text
        assert len(said.splitlines()) <= 3, said
        assert "Traceback" not in self.text
        assert seconds < LIMIT, f"{seconds:.1f} s"
        self.wait_until_gone()
        assert not list(self.temporary.iterdir())
        return seconds

    def close(self) -> None:
        for pid in self.family.pids():
            os.kill(pid, signal.SIGKILL)
        self.family.process.wait()
