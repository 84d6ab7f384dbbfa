"""System calls, by strace: a file is synced, then named, and then its folder is synced.

Real programs: the embedded nsqd with its disk queues, ``to-file`` with a work folder, and Spark's
stores. Without strace, or where it may not trace, the tests are skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnsqsync import NsqdHTTP
from tests.integration.conftest import address
from tests.support.programs import Program
from tests.support.servers import Server
from tests.support.tofile import OURS, make_channels, publish

_CALLS = "write,pwrite64,fsync,fdatasync,rename,renameat,renameat2,link,linkat"
_STRACE = shutil.which("strace")

# "4711 fsync(5</folder/file>) = 0"
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+)")
_THREAD = re.compile(r"(\d*) *(.*)")
# A call of one thread beside a call of another is told in two lines.
_UNFINISHED = " <unfinished ...>"
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>(.*)")
_FILE = re.compile(r"^\d+<([^>]*)>")
_NAMES = re.compile(r'"([^"]*)"')


def calls(log: str) -> Iterator[tuple[str, str, str]]:
    """Each call in the order of the ends: its name, arguments and result."""
    begun: dict[str, str] = {}
    for line in log.splitlines():
        found = _THREAD.fullmatch(line)
        assert found is not None
        thread, told = found.groups()
        resumed = _RESUMED.fullmatch(told)
        if told.endswith(_UNFINISHED):
            begun[thread] = told.removesuffix(_UNFINISHED)
            continue
        if resumed is not None:
            told = begun.pop(thread) + resumed[1]
        call = _CALL.match(told)
        if call is not None:
            yield call[1], call[2], call[3]


def may_trace() -> bool:
    return (
        _STRACE is not None
        and subprocess.run([_STRACE, "-o", "/dev/null", "true"], check=False).returncode == 0
    )


pytestmark = pytest.mark.skipif(not may_trace(), reason="strace is missing, or may not trace")


class Trace:
    """A program under strace, and what it did to files below a folder."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self._log = folder / "strace"
        self._folder = folder
        before = ["strace", "-f", "-y", "-s", "0", "-e", f"trace={_CALLS}", "-o", str(self._log)]
        self.program = Program([*before, *words], folder)

    def signal(self) -> None:
        """SIGTERM to the program, not to strace."""
        pid = self.program.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)

    def steps(self) -> Iterator[tuple[str, str, str]]:
        """Each call that succeeded: its kind, the file, and the new name."""
        for call, arguments, result in calls(self._log.read_text()):
            if int(result) < 0:
                continue
            file = _FILE.match(arguments)
            if call.startswith(("rename", "link")):
                old, new = (os.path.join(self._folder, name) for name in _NAMES.findall(arguments))
                # Python itself renames compiled files.
                if new.startswith(str(self._folder)):
                    yield "name", old, new
            elif file is not None and file[1].startswith(str(self._folder)):
                yield ("sync" if "sync" in call else "write"), file[1], ""

    def names(self) -> list[str]:
        """The names that files got. AssertionError if one was not synced, or its folder not."""
        dirty: set[str] = set()
        unsynced_folders: set[str] = set()
        named = []
        for kind, file, new in self.steps():
            if kind == "write":
                dirty.add(file)
            elif kind == "sync":
                dirty.discard(file)
                unsynced_folders.discard(file)
            else:
                assert file not in dirty, f"{file} became {new} before it was synced"
                unsynced_folders.add(os.path.dirname(new))
                named.append(os.path.basename(new))
        assert not unsynced_folders, f"not synced behind a rename: {unsynced_folders}"
        return named


@pytest.fixture
def traces() -> Iterator[list[Trace]]:
    running: list[Trace] = []
    yield running
    for trace in running:
        trace.program.kill()


def test_the_embedded_nsqd(tmp_path: Path, traces: list[Trace]) -> None:
    data = tmp_path / "data"
    data.mkdir()
    words = [sys.executable, "-m", "gnsqsync.embedded", "nsqd", f"-data-path={data}"]
    words += ["-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0", "-mem-queue-size=0"]
    trace = Trace(words, tmp_path)
    traces.append(trace)
    where = trace.program.wait_for("HTTP: listening on ([0-9.:]+)")[1]
    with NsqdHTTP(where) as http:
        http.create_topic("t")
        http.mpub("t", [b"one", b"two"])
    trace.signal()
    trace.program.end(0)
    names = trace.names()
    assert names.count("nsqd.dat") >= 2
    assert "t.diskqueue.meta.dat" in names


@pytest.mark.parametrize("server_kind", ["embedded"])
def test_to_file(nsqd: Server, topic: str, tmp_path: Path, traces: list[Trace]) -> None:
    make_channels(nsqd, topic, OURS)
    publish(nsqd, topic, [b"one", b"two"])
    words = [sys.executable, "-m", "gnsqsync.cli", "to-file", "--topic", topic, "--channel", OURS]
    words += ["-t", address(nsqd), "--output-dir", str(tmp_path / "out"), "--gzip"]
    trace = Trace([*words, "--work-dir", str(tmp_path / "work")], tmp_path)
    traces.append(trace)
    trace.program.eventually(lambda: any((tmp_path / "work").glob("*.gz")))
    trace.signal()
    trace.program.end(0)
    (name,) = trace.names()
    assert name.endswith(".gz")


def test_a_store_of_spark(tmp_path: Path, traces: list[Trace]) -> None:
    script = """
import sys
from gnsqsync.spark.stores import FileStore
store = FileStore(sys.argv[1])
assert store.create("log/one", b"1") and not store.create("log/one", b"2")
store.put("log/marker", b"3")
store.put("log/marker", b"4")
store.copy([("log/one", "old/one")])
"""
    trace = Trace([sys.executable, "-c", script, str(tmp_path / "store")], tmp_path)
    traces.append(trace)
    trace.program.end(0)
    assert trace.names() == ["one", "marker", "marker", "one"]


def test_a_missing_sync_is_found(tmp_path: Path, traces: list[Trace]) -> None:
    script = "import os; open('a', 'w').write('x'); os.rename('a', 'b')"
    trace = Trace([sys.executable, "-c", script], tmp_path)
    traces.append(trace)
    trace.program.end(0)
    with pytest.raises(AssertionError, match="before it was synced"):
        trace.names()
