"""How ``gnsqsync to-file`` ends: kills, signals, full disks; and two of them on one folder.

A disk that is full or read-only is mounted, so those tests need to be root.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import address
from tests.support.needs import missing
from tests.support.rawclient import channel_stats
from tests.support.servers import Server, Site
from tests.support.tofile import (
    OURS,
    Tool,
    contents,
    lines,
    make_channels,
    publish,
    wait_until_finished,
)
from tests.support.waiting import eventually

MakeTool = Callable[..., Tool]

# What comes of it cannot be compressed, so gzip writes some of a member before its end.
SIZE = 4000


def bodies(count: int, name: str = "") -> list[bytes]:
    """Different ones, without newlines."""
    filler = (os.urandom(SIZE // 2).hex().encode() for _ in range(count))
    return [b"%s%06d " % (name.encode(), n) + text for n, text in enumerate(filler)]


@pytest.fixture
def tool(tmp_path: Path, site: Site, topic: str) -> Iterator[MakeTool]:
    """Of the topic and a new nsqd, each in a folder by its name."""
    made: list[Tool] = []

    def make(nsqd: Server, *flags: str, name: str = "one", **more: list[str]) -> Tool:
        words = [f"--nsqd-tcp-address={address(nsqd)}", f"--topic={topic}", *flags]
        made.append(Tool(OURS, tmp_path / name, *words, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def msg_timeout() -> str:
    """After which nsqd gives what a killed process had to the next one."""
    return "10s"


@pytest.fixture
def nsqd(site: Site, topic: str, msg_timeout: str) -> Server:
    server = site.own_nsqd(f"-msg-timeout={msg_timeout}")
    make_channels(server, topic, OURS)
    return server


class Load:
    """Publishes until it is stopped; all that nsqd took is in ``sent``."""

    def __init__(self, nsqd: Server, topic: str) -> None:
        self.sent: list[bytes] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(nsqd, topic))
        self._thread.start()

    def _run(self, nsqd: Server, topic: str) -> None:
        number = 0
        while not self._over.wait(0.01):
            some = [b"%08d" % n for n in range(number, number + 50)]
            publish(nsqd, topic, some)
            self.sent += some
            number += len(some)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def load(nsqd: Server, topic: str) -> Iterator[Load]:
    running = Load(nsqd, topic)
    yield running
    running.stop()


def finished(nsqd: Server, topic: str) -> int:
    now = channel_stats(nsqd.http_address, topic, OURS)
    return int(now["message_count"] - now["depth"] - now["in_flight_count"])


WAYS = {
    "plain": [],
    "gzip": ["--gzip"],
    "size": ["--rotate-size=20000"],
    "work": ["--gzip", "--work-dir=WORK", "--rotate-size=20000"],
}


@pytest.mark.parametrize("msg_timeout", ["2s"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.pairs
def test_kills_under_load(nsqd: Server, topic: str, tool: MakeTool, load: Load, way: str) -> None:
    """Nothing is missing, and every file is whole after the next start."""
    one = tool(nsqd, "--sync-interval=100ms", *WAYS[way])
    for _ in range(3):
        before = finished(nsqd, topic)
        one.start()
        eventually(lambda n=before: finished(nsqd, topic) > n + 500)
        one.kill()
    load.stop()
    one.start()
    wait_until_finished(nsqd, topic, OURS, len(load.sent))
    one.stop()
    assert set(lines(one.out)) == set(load.sent)
    assert not one.work.exists() or not contents(one.work)


@pytest.mark.parametrize("flags", [[], ["--work-dir=WORK"]])
@pytest.mark.pairs
def test_a_gzip_member_that_is_cut_off(
    nsqd: Server, topic: str, tool: MakeTool, flags: list[str]
) -> None:
    one = tool(nsqd, "--gzip", "--max-in-flight=2500", "--filename-format=x<REV>", *flags)
    first, second = bodies(50, "a"), bodies(50, "b")
    publish(nsqd, topic, first)
    one.start()
    place = (one.work if flags else one.out) / "x-000000.gz"
    eventually(lambda: place.exists() and place.stat().st_size > 40 * SIZE // 2)
    one.kill()
    with pytest.raises(EOFError):
        contents(place.parent)
    publish(nsqd, topic, second)
    one.start()
    wait_until_finished(nsqd, topic, OURS, 100)
    one.stop()
    assert Counter(lines(one.out)) == Counter(first + second)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.pairs
def test_signals_under_load(
    nsqd: Server, topic: str, tool: MakeTool, load: Load, way: str, number: signal.Signals
) -> None:
    """Files are finished and moved, and nothing is written twice."""
    one = tool(nsqd, *WAYS[way])
    for _ in range(3):
        before = finished(nsqd, topic)
        one.start()
        eventually(lambda n=before: finished(nsqd, topic) > n + 500)
        assert "stopped" in one.stop(number)
        assert not one.work.exists() or not contents(one.work)
        lines(one.out)
    load.stop()
    one.words.append("--sync-interval=100ms")
    one.start()
    wait_until_finished(nsqd, topic, OURS, len(load.sent))
    one.stop()
    assert Counter(lines(one.out)) == Counter(load.sent)


def test_a_second_signal_does_not_wait(nsqd: Server, topic: str, tool: MakeTool) -> None:
    one = tool(nsqd)
    publish(nsqd, topic, bodies(5))
    run = one.start()
    # The first message begins a file, which is a sync.
    eventually(lambda: channel_stats(nsqd.http_address, topic, OURS)["in_flight_count"] == 4)
    run.signal(signal.SIGTERM)
    run.signal(signal.SIGTERM)
    run.process.wait(60)
    again = tool(nsqd, "--sync-interval=100ms", name="two")
    again.start()
    wait_until_finished(nsqd, topic, OURS, 5)
    again.stop()
    assert len(set(lines(one.out, again.out))) == 5


@pytest.mark.usefixtures("hangups")
def test_hangup_with_a_work_folder(nsqd: Server, topic: str, tool: MakeTool) -> None:
    """nsq_to_file ends with an error at the next message."""
    one = tool(nsqd, "--work-dir=WORK", "--filename-format=x<REV>")
    run = one.start()
    publish(nsqd, topic, [b"before"])
    eventually(lambda: one.work.exists() and contents(one.work) == {"x-000000": b"before\n"})
    run.signal(signal.SIGHUP)
    run.eventually(lambda: one.out.exists() and contents(one.out) == {"x-000000": b"before\n"})
    publish(nsqd, topic, [b"behind"])
    run.eventually(lambda: contents(one.work) == {"x-000001": b"behind\n"})
    one.stop()
    assert contents(one.out) == {"x-000000": b"before\n", "x-000001": b"behind\n"}


# -- disks ---------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Of 1 MB, where the tool called "one" writes."""
    folder = tmp_path / "one" / "out"
    folder.mkdir(parents=True)
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        missing(error)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize(
    "flags",
    [[], ["--gzip"], ["--rotate-size=100000"], ["--rotate-size=100000", "--work-dir=WORK"]],
)
@pytest.mark.pairs
def test_a_full_disk(
    nsqd: Server, topic: str, tool: MakeTool, small_disk: Path, flags: list[str]
) -> None:
    """One sentence; what is finished is on the disk, the rest is at nsqd at once."""
    sent = bodies(600)
    publish(nsqd, topic, sent)
    one = tool(nsqd, *flags)
    output = one.start().end(1)
    assert "No space left on device" in output, output
    assert str(small_disk) in output
    assert "Traceback" not in output
    now = channel_stats(nsqd.http_address, topic, OURS)
    assert now["in_flight_count"] == 0
    left = lines(one.out) + (lines(one.work) if one.work.exists() else [])
    assert finished(nsqd, topic) <= len(left) < len(sent)
    again = tool(nsqd, "--sync-interval=100ms", name="two")
    again.start()
    wait_until_finished(nsqd, topic, OURS, len(sent))
    again.stop()
    assert set(left + lines(again.out)) == set(sent)


def test_a_folder_that_is_read_only(
    nsqd: Server, topic: str, tool: MakeTool, small_disk: Path
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    publish(nsqd, topic, [b"one"])
    output = tool(nsqd).start().end(1)
    assert "Read-only file system" in output and str(small_disk) in output
    assert "Traceback" not in output
    assert finished(nsqd, topic) == 0


def test_a_topic_that_cannot_be_written_stops_no_other(
    nsqd: Server, topic: str, tool: MakeTool
) -> None:
    """Neither at the start nor later; its messages wait, and are written when that works."""
    bad, good = f"{topic}-bad", f"{topic}-good"
    flags = [f"--topic={bad}", f"--topic={good}", "--sync-interval=100ms"]
    one = tool(nsqd, *flags, "--filename-format=<TOPIC>/log")
    for name in (bad, good):
        make_channels(nsqd, name, OURS)
        publish(nsqd, name, [b"before"])
    one.out.mkdir()
    (one.out / bad).write_bytes(b"a file where a folder is needed")
    run = one.start()
    run.eventually(lambda: finished(nsqd, good) == 1)
    run.wait_for(f"topic {bad} is not written: cannot write .*/{bad}: Not a directory")
    assert (finished(nsqd, bad), finished(nsqd, topic)) == (0, 0)
    (one.out / bad).unlink()
    run.eventually(lambda: finished(nsqd, bad) == 1)
    # Now while it runs.
    publish(nsqd, topic, [b"after"])
    run.eventually(lambda: finished(nsqd, topic) == 1)
    output = one.stop()
    assert output.count("is not written") == 1
    assert f"topic {bad} is written again, after" in output
    assert "Traceback" not in output
    assert (one.out / bad / "log").read_bytes() == (one.out / good / "log").read_bytes()


def test_a_topic_without_a_file_name_stops_no_other(site: Site, topic: str, tool: MakeTool) -> None:
    """A topic may be called ".."."""
    lookupd = site.own_nsqlookupd()
    nsqd = site.own_nsqd("-lookupd-tcp-address={}:{}".format(*lookupd.tcp_address))
    for name in ("..", topic):
        make_channels(nsqd, name, OURS)
        publish(nsqd, name, [b"one"])
    one = tool(nsqd, "--filename-format=<TOPIC>/log", "--sync-interval=100ms")
    one.words = [word for word in one.words if not word.startswith(("--topic=", "--nsqd"))]
    one.words += ["--topic-pattern=.", "-l", "{}:{}".format(*lookupd.http_address)]
    run = one.start()
    run.eventually(lambda: finished(nsqd, topic) == 1)
    run.wait_for("topic .. is not written: --filename-format makes '../log'")
    run.signal(signal.SIGTERM)
    # Something was not written.
    assert "Traceback" not in run.end(1)


def test_an_output_folder_that_is_a_file(nsqd: Server, tool: MakeTool) -> None:
    one = tool(nsqd)
    one.out.write_bytes(b"mine")
    output = one.start().end(1)
    assert f"cannot write {one.out}: Not a directory" in output
    assert one.out.read_bytes() == b"mine"


def test_a_disk_that_syncs_slower_than_the_message_timeout(
    site: Site, topic: str, tool: MakeTool, tmp_path: Path
) -> None:
    """nsqd does not take back what is synced: no message comes twice."""
    nsqd = site.own_nsqd("-msg-timeout=1s")
    make_channels(nsqd, topic, OURS)
    (tmp_path / "slow.py").write_text(SLOW)
    sent = bodies(60)
    publish(nsqd, topic, sent)
    program = ["python", str(tmp_path / "slow.py")]
    one = tool(nsqd, "--max-in-flight=20", program=program)
    one.start()
    wait_until_finished(nsqd, topic, OURS, len(sent))
    one.stop()
    assert channel_stats(nsqd.http_address, topic, OURS)["timeout_count"] == 0
    assert Counter(lines(one.out)) == Counter(sent)


SLOW = """
import time
from gnsqsync.process.backup.disk import LocalDisk

sync = LocalDisk.sync

def slow(self, file):
    time.sleep(2.5)
    sync(self, file)

LocalDisk.sync = slow
from gnsqsync.cli import main
raise SystemExit(main())
"""


# -- two on one folder ---------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["gzip", "size", "work"])
@pytest.mark.pairs
def test_two_on_one_folder(nsqd: Server, topic: str, tool: MakeTool, load: Load, way: str) -> None:
    """Each has its own revisions."""
    flags = [*WAYS[way], "--sync-interval=100ms", "--max-in-flight=20"]
    one, two = tool(nsqd, *flags), tool(nsqd, *flags)
    assert one.out == two.out
    one.start()
    two.start()

    def both_have_written() -> bool:
        clients = channel_stats(nsqd.http_address, topic, OURS)["clients"]
        return len(clients) == 2 and all(client["finish_count"] > 500 for client in clients)

    eventually(both_have_written)
    load.stop()
    wait_until_finished(nsqd, topic, OURS, len(load.sent))
    one.stop()
    two.stop()
    assert Counter(lines(one.out)) == Counter(load.sent)
    assert len(contents(one.out)) > 1


def test_two_on_one_file(nsqd: Server, topic: str, tool: MakeTool) -> None:
    """Without revisions the second one says so, and gives back what it got."""
    one, two = tool(nsqd, "--sync-interval=100ms"), tool(nsqd)
    publish(nsqd, topic, [b"first"])
    one.start()
    wait_until_finished(nsqd, topic, OURS, 1)
    run = two.start()
    eventually(lambda: channel_stats(nsqd.http_address, topic, OURS)["client_count"] == 2)
    sent = [b"%d" % number for number in range(100)]
    publish(nsqd, topic, sent)
    output = run.end(1)
    assert f"another process writes to {one.out}/" in output and "--host-identifier" in output
    wait_until_finished(nsqd, topic, OURS, 101)
    one.stop()
    assert Counter(lines(one.out)) == Counter([b"first", *sent])
