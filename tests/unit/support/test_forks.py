"""A fork of the tests is as a program that was started, but for its imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forks import Fork, Forks

SCRIPT = """
import json, os, signal, sys
import beside
if sys.argv[1:] == ["waits"]:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGSTOP)
print(json.dumps([__name__, sys.argv, sys.orig_argv[1:], sys.stdin.read(), dict(os.environ),
                  os.getcwd(), os.getsid(0) == os.getpid(), "colorsys" in sys.modules]))
sys.exit("to stderr")
"""


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    forks = Forks(["colorsys"])
    yield forks
    forks.close()


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in ("in", "out", "err")]
    for path in found:
        path.write_text("read" if path.name == "in" else "")
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").touch()
    return found


def start(forks: Forks, files: list[Path], *words: str) -> Fork:
    return forks.start(["script.py", *words], files[0].parent, {"HOME": "/x"}, files)


def test_all_of_it_is_its_own(forks: Forks, files: list[Path]) -> None:
    assert start(forks, files, "a").wait(60) == 1
    name, argv, words, read, environment, folder, leads, imported = json.loads(files[1].read_text())
    assert (name, argv, read, environment) == (
        "__main__",
        ["script.py", "a"],
        "read",
        {"HOME": "/x"},
    )
    assert words == ["-W", "error", "script.py", "a"]
    assert (folder, leads, imported) == (str(files[0].parent), True, True)
    assert files[2].read_text() == "to stderr\n"


def test_a_running_child_is_waited_for_and_ended(forks: Forks, files: list[Path]) -> None:
    fork = start(forks, files, "waits")
    with pytest.raises(subprocess.TimeoutExpired):
        fork.wait(0)
    assert fork.poll() is None
    os.killpg(fork.pid, signal.SIGKILL)
    assert fork.wait(60) == fork.poll() == -signal.SIGKILL
    fork.send_signal(signal.SIGTERM)  # to nobody
