"""``gnsqsync to-file`` beside the Go nsq_to_file: same names and contents for the same flags."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnsqsync.cli import main
from tests.integration.conftest import address
from tests.support import realnsq
from tests.support.needs import missing
from tests.support.rawclient import channel_stats
from tests.support.servers import Server, Site, unique
from tests.support.tofile import (
    THEIRS,
    TOOLS,
    Tool,
    contents,
    make_channels,
    publish,
    wait_until_finished,
)
from tests.support.waiting import eventually

MakeTools = Callable[..., list[Tool]]

# 50 bytes with the newline: --rotate-size=300 begins a new file after the seventh.
BODIES = [b"%049d" % number for number in range(25)]


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[MakeTools]:
    """Both with the same flags, not started."""
    try:
        realnsq.program("nsq_to_file")
    except realnsq.Unavailable as error:
        missing(error)
    made: list[Tool] = []

    def make(*flags: str) -> list[Tool]:
        made.extend(Tool(which, tmp_path / which, *flags) for which in TOOLS)
        return made

    yield make
    for tool in made:
        tool.close()


def nsqd_flag(nsqd: Server) -> str:
    return f"--nsqd-tcp-address={address(nsqd)}"


def away_from_the_hour() -> None:
    """Names of an hour are to be compared, so wait where the next one is near."""
    left = 3600 - time.time() % 3600
    if left < 20:
        time.sleep(left)


def no_pid(tool: Tool, folder: Path) -> dict[str, bytes]:
    pid = str(tool.runs[-1].process.pid)
    return {name.replace(pid, "PID"): data for name, data in contents(folder).items()}


NAMES = [
    "--filename-format=<TOPIC>/<DATETIME>/<HOST><REV>.txt",
    "--host-identifier=<SHORT_HOST>_on_<HOSTNAME>",
    "--datetime-format=%Y_%b_%%_%A",
]
HOW: list[tuple[list[str], int]] = [
    ([], 1),
    (["--gzip"], 1),
    (["--gzip", "--gzip-level=9", "--rotate-size=300"], 4),
    (["--rotate-size=300"], 4),
    (["--rotate-size=300", "--work-dir=WORK"], 4),
    (["--work-dir=WORK", "--gzip", "--rotate-size=300", "--skip-empty-files"], 4),
    (["--rotate-interval=1h"], 1),
    ([*NAMES], 1),
    ([*NAMES, "--gzip", "--rotate-size=300", "--work-dir=WORK"], 4),
    (["--filename-format=a-<PID>-<TOPIC>.<HOST>.log"], 1),
]


@pytest.mark.pairs
@pytest.mark.parametrize(("flags", "files"), HOW)
def test_same_files(site: Site, topic: str, tools: MakeTools, flags: list[str], files: int) -> None:
    nsqd = site.nsqd()
    make_channels(nsqd, topic, *TOOLS)
    odd = [b"a\nb", b"\n", bytes(range(256)), b"\r", b" "]
    publish(nsqd, topic, [*BODIES, *(odd if files == 1 else [])])
    both = tools(nsqd_flag(nsqd), f"--topic={topic}", "--sync-interval=300ms", *flags)
    away_from_the_hour()
    for tool in both:
        tool.start()
    for tool in both:
        wait_until_finished(nsqd, topic, tool.channel, len(BODIES))
        tool.stop()
        assert not tool.work.exists() or not contents(tool.work)
    ours, theirs = (no_pid(tool, tool.out) for tool in both)
    assert len(theirs) == files
    assert ours == theirs
    text = b"".join(data for _, data in sorted(theirs.items()))
    assert text.startswith(b"".join(body + b"\n" for body in BODIES))


@pytest.mark.parametrize("flags", [[], ["--skip-empty-files"], ["--gzip"]])
def test_without_messages(site: Site, topic: str, tools: MakeTools, flags: list[str]) -> None:
    nsqd = site.nsqd()
    make_channels(nsqd, topic, *TOOLS)
    both = tools(nsqd_flag(nsqd), f"--topic={topic}", "--sync-interval=100ms", *flags)
    away_from_the_hour()
    for tool in both:
        tool.start()
    for tool in both:
        client = eventually(lambda t=tool: channel_stats(nsqd.http_address, topic, t.channel))
        assert client is not None
        eventually(
            lambda t=tool: channel_stats(nsqd.http_address, topic, t.channel)["client_count"]
        )
    if "--skip-empty-files" in flags:
        site.sleep(1.0)  # the other flags show that a tick would have made one by then
    else:
        for tool in both:
            eventually(lambda t=tool: t.out.exists() and list(t.out.iterdir()))
    for tool in both:
        tool.stop()
    ours, theirs = (contents(tool.out) for tool in both)
    assert (list(ours.values()), ours) == ([] if "--skip-empty-files" in flags else [b""], theirs)


@pytest.mark.parametrize(
    ("flags", "before"),
    [
        (["--filename-format=x<REV>"], {"x": b"old\n"}),
        (["--filename-format=x<REV>", "--rotate-size=300"], {"x-000000": b"old\n"}),
        (
            ["--filename-format=x<REV>", "--rotate-size=300"],
            {"x-000000": b"old\n" * 100, "x-000001": b"old\n" * 76},
        ),
        (["--filename-format=x<REV>", "--rotate-interval=1h"], {"x-000000": b"old\n"}),
        (["--filename-format=x<REV>", "--work-dir=WORK"], {"x-000000": b"old\n"}),
    ],
)
@pytest.mark.pairs
def test_files_that_were_there_before(
    site: Site, topic: str, tools: MakeTools, flags: list[str], before: dict[str, bytes]
) -> None:
    nsqd = site.nsqd()
    make_channels(nsqd, topic, *TOOLS)
    publish(nsqd, topic, BODIES)
    flag = "--filename-format=x.<TOPIC><REV>"
    flags = [flag if "filename" in name else name for name in flags]
    both = tools(nsqd_flag(nsqd), f"--topic={topic}", "--sync-interval=300ms", *flags)
    for tool in both:
        tool.out.mkdir()
        for name, data in before.items():
            (tool.out / name.replace("x", f"x.{topic}")).write_bytes(data)
        tool.start()
    for tool in both:
        wait_until_finished(nsqd, topic, tool.channel, len(BODIES))
        tool.stop()
    ours, theirs = (contents(tool.out) for tool in both)
    assert ours == theirs
    # Nothing of what was there is lost.
    assert b"".join(theirs.values()).count(b"old\n") == b"".join(before.values()).count(b"old\n")


@pytest.mark.parametrize(
    "flags",
    [
        ["--rotate-interval=700ms", "--filename-format=<TOPIC><REV>"],
        ["--datetime-format=%S", "--filename-format=<DATETIME>.<TOPIC>"],
    ],
)
@pytest.mark.pairs
def test_rotation_by_time(site: Site, topic: str, tools: MakeTools, flags: list[str]) -> None:
    """What comes a second apart lies in different files."""
    nsqd = site.nsqd()
    make_channels(nsqd, topic, *TOOLS)
    both = tools(nsqd_flag(nsqd), f"--topic={topic}", *flags)
    for tool in both:
        tool.start()
    for tool in both:
        eventually(
            lambda t=tool: channel_stats(nsqd.http_address, topic, t.channel)["client_count"]
        )
    for number in range(3):
        # In the middle of a second, so that both write within the same one.
        site.sleep(1.0 if "interval" in flags[0] else 1.3 - time.time() % 1)
        body = b"%d" % number
        publish(nsqd, topic, [body])
        for tool in both:
            eventually(lambda t=tool, b=body: b + b"\n" in contents(t.out).values())
    for tool in both:
        tool.stop()
    ours, theirs = (contents(tool.out) for tool in both)
    assert len(theirs) == 3
    assert ours == theirs


def test_several_topics(site: Site, topic: str, tools: MakeTools) -> None:
    nsqd = site.nsqd()
    topics = [topic, unique("other"), unique("third")]
    for name in topics:
        make_channels(nsqd, name, *TOOLS)
        publish(nsqd, name, [name.encode()])
    both = tools(
        nsqd_flag(nsqd),
        *(f"--topic={name}" for name in topics),
        "--topic-pattern=^topic|^other",
        "--filename-format=<TOPIC>",
        "--sync-interval=200ms",
    )
    for tool in both:
        tool.start()
    for tool in both:
        for name in topics[:2]:
            wait_until_finished(nsqd, name, tool.channel, 1)
        tool.stop()
    ours, theirs = (contents(tool.out) for tool in both)
    assert ours == theirs == {name: name.encode() + b"\n" for name in topics[:2]}


def test_topics_by_pattern(site: Site, tools: MakeTools) -> None:
    """Also of one that comes later."""
    nsqlookupd = site.own_nsqlookupd()
    nsqd = site.own_nsqd(f"-lookupd-tcp-address={address(nsqlookupd)}")
    for name in ("shop_one", "shop_two", "bank"):
        make_channels(nsqd, name, *TOOLS)
        publish(nsqd, name, [name.encode()])
    host, port = nsqlookupd.http_address
    both = tools(
        f"--lookupd-http-address={host}:{port}",
        "--topic-pattern=^shop",
        "--topic-refresh=300ms",
        "--filename-format=<TOPIC>",
        "--sync-interval=200ms",
    )
    for tool in both:
        tool.start()
    for tool in both:
        wait_until_finished(nsqd, "shop_one", tool.channel, 1)
        wait_until_finished(nsqd, "shop_two", tool.channel, 1)
    make_channels(nsqd, "shop_new", *TOOLS)
    publish(nsqd, "shop_new", [b"shop_new"])
    for tool in both:
        wait_until_finished(nsqd, "shop_new", tool.channel, 1)
        tool.stop()
    ours, theirs = (contents(tool.out) for tool in both)
    assert ours == theirs
    assert ours == {name: name.encode() + b"\n" for name in ("shop_one", "shop_two", "shop_new")}


@pytest.mark.usefixtures("hangups")
def test_hangup_lets_a_file_be_moved_away(site: Site, topic: str, tools: MakeTools) -> None:
    """As logrotate does it."""
    nsqd = site.nsqd()
    make_channels(nsqd, topic, *TOOLS)
    both = tools(nsqd_flag(nsqd), f"--topic={topic}", "--filename-format=<TOPIC>")
    for tool in both:
        tool.start()
    publish(nsqd, topic, [b"before"])
    for tool in both:
        eventually(lambda t=tool: contents(t.out) == {topic: b"before\n"})
        (tool.out / topic).rename(tool.out / "old")
        tool.runs[-1].signal(signal.SIGHUP)
        eventually(lambda t=tool: not t.has_open(t.out))
        wait_until_finished(nsqd, topic, tool.channel, 1)
    publish(nsqd, topic, [b"behind"])
    for tool in both:
        eventually(lambda t=tool: len(contents(t.out)) == 2)
        tool.stop()
    ours, theirs = (contents(tool.out) for tool in both)
    assert ours == theirs == {"old": b"before\n", topic: b"behind\n"}


@pytest.mark.usefixtures("hangups")
def test_hangup_takes_the_next_revision(site: Site, topic: str, tools: MakeTools) -> None:
    nsqd = site.nsqd()
    make_channels(nsqd, topic, *TOOLS)
    both = tools(
        nsqd_flag(nsqd),
        f"--topic={topic}",
        "--gzip",
        "--filename-format=<TOPIC><REV>",
        "--sync-interval=100ms",
    )
    for tool in both:
        tool.start()
    publish(nsqd, topic, [b"before"])
    for tool in both:
        wait_until_finished(nsqd, topic, tool.channel, 1)
        tool.runs[-1].signal(signal.SIGHUP)
        # The next tick begins it.
        eventually(lambda t=tool: (t.out / f"{topic}-000001.gz").exists())
    publish(nsqd, topic, [b"behind"])
    for tool in both:
        wait_until_finished(nsqd, topic, tool.channel, 2)
        tool.stop()
    ours, theirs = (contents(tool.out) for tool in both)
    assert ours == theirs
    assert ours == {f"{topic}-000000.gz": b"before\n", f"{topic}-000001.gz": b"behind\n"}


def test_each_flag_of_the_go_tool(
    tools: MakeTools, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for those that the page names."""
    theirs = tools()[TOOLS.index(THEIRS)]
    theirs.words[1:] = ["--help"]
    flags = [
        line.split()[0].removeprefix("-")
        for line in theirs.start().end().splitlines()
        if line.startswith("  -")
    ]
    assert len(flags) > 20
    assert main(["to-file", "--help"]) == 0
    text = capsys.readouterr().out
    left_out = {"http-client-connect-timeout", "http-client-request-timeout"}
    left_out |= {"log-level", "log-prefix", "version"}
    assert {name for name in flags if f"--{name} " not in text} == left_out
    page = (Path(__file__).parents[2] / "docs/guides/to-file.rst").read_text()
    assert all(f"``--{name}``" in page for name in left_out - {"version"})
