"""``gnsqsync topic`` and ``channel``, and what all commands have in common in their options."""

from __future__ import annotations

import os
import pty
import subprocess
from collections import defaultdict
from collections.abc import Iterator

import click
import pytest

from gnsqsync import LookupdHTTP, NsqdHTTP
from gnsqsync.cli.app import COMMANDS, gnsqsync
from tests.integration.test_cli import command, environment, http, sentence, tcp
from tests.support.commands import Commands
from tests.support.servers import Site, unique


def _commands(group: click.Group) -> Iterator[click.Command]:
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        assert found is not None
        yield found
        if isinstance(found, click.Group):
            yield from _commands(found)


def test_no_letter_has_two_meanings() -> None:
    meanings: dict[str, set[str]] = defaultdict(set)
    for each in _commands(gnsqsync):
        for option in each.params:
            for letter in (word for word in option.opts if len(word) == 2):
                meanings[letter].update(word for word in option.opts if word.startswith("--"))
    assert "topic" in COMMANDS and meanings["-t"] == {"--nsqd-tcp-address"}
    assert {letter: words for letter, words in meanings.items() if len(words) != 1} == {}


def test_the_life_of_a_topic_and_a_channel(commands: Commands, site: Site) -> None:
    nsqd, topic = site.nsqd(), unique()
    where = ("-H", http(nsqd))
    with NsqdHTTP(nsqd.http_address) as client:
        assert commands("topic", "create", topic, *where).returncode == 0
        assert commands("channel", "create", topic, "c", *where).returncode == 0
        assert commands("topic", "pause", topic, *where).returncode == 0
        assert commands("channel", "pause", topic, "c", *where).returncode == 0
        (found,) = client.stats(topic).topics
        assert found.paused and found.channels[0].paused
        client.pub(topic, b"x")
        assert commands("topic", "empty", topic, "--yes", *where).returncode == 0
        assert commands("topic", "unpause", topic, *where).returncode == 0
        client.pub(topic, b"x")
        site.eventually(lambda: client.stats(topic).topics[0].channels[0].depth == 1)
        assert commands("channel", "empty", topic, "c", "--yes", *where).returncode == 0
        assert commands("channel", "unpause", topic, "c", *where).returncode == 0
        (found,) = client.stats(topic).topics
        assert not found.paused and not found.channels[0].paused
        assert (found.depth, found.channels[0].depth) == (0, 0)
        assert commands("channel", "delete", topic, "c", "--yes", *where).returncode == 0
        assert client.stats(topic).topics[0].channels == ()
        result = commands("topic", "delete", topic, "--yes", *where)
        assert result.returncode == 0 and b"deleted" in result.stdout
        assert client.stats(topic).topics == ()


def test_with_nsqlookupd_as_nsqadmin_does_it(commands: Commands, site: Site) -> None:
    lookupd = site.own_nsqlookupd()
    nsqd, topic = site.own_nsqd(f"-lookupd-tcp-address={tcp(lookupd)}"), unique()
    where = ("-l", http(lookupd))
    with NsqdHTTP(nsqd.http_address) as client, LookupdHTTP(lookupd.http_address) as asked:
        assert commands("topic", "create", topic, *where).returncode == 0
        assert topic in asked.topics() and client.stats(topic).topics == ()
        client.create_topic(topic)
        site.eventually(lambda: len(asked.lookup(topic).producers) == 1)
        assert commands("channel", "create", topic, "c", *where).returncode == 0
        assert client.stats(topic).topics[0].channels[0].channel_name == "c"
        assert commands("topic", "delete", topic, "--yes", *where).returncode == 0
        assert client.stats(topic).topics == ()
        site.eventually(lambda: topic not in asked.topics())


@pytest.mark.parametrize("action", ["delete", "empty", "pause", "unpause"])
def test_an_unknown_topic_is_an_error(commands: Commands, site: Site, action: str) -> None:
    words = ["--yes"] if action in ("delete", "empty") else []
    result = commands("topic", action, unique("none"), "-H", http(site.nsqd()), *words)
    assert result.returncode == 1
    assert "no such topic" in sentence(result)


def test_a_partial_failure_names_each_server(commands: Commands, site: Site) -> None:
    nsqd, topic = site.nsqd(), unique()
    result = commands("topic", "create", topic, "-H", http(nsqd), "-H", "127.0.0.1:1")
    assert result.returncode == 1
    assert http(nsqd) in result.stdout.decode()
    assert "127.0.0.1:1" in sentence(result)


def test_without_a_terminal_nothing_is_thrown_away_unasked(commands: Commands, site: Site) -> None:
    result = commands("topic", "delete", "t", "-H", http(site.nsqd()))
    assert result.returncode == 2
    assert "--yes" in sentence(result) and sentence(result).count("\n") == 1


@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_terminal_is_asked(site: Site, answer: str) -> None:
    nsqd, topic = site.nsqd(), unique()
    with NsqdHTTP(nsqd.http_address) as client:
        client.pub(topic, b"x")
        ours, theirs = pty.openpty()
        os.write(ours, answer.encode() + b"\n")
        result = subprocess.run(
            command("topic", "delete", topic, "-H", http(nsqd)),
            stdin=theirs,
            capture_output=True,
            env=environment(),
            timeout=60,
            check=False,
        )
        os.close(ours)
        os.close(theirs)
        assert "1 waiting message," in sentence(result)
        assert result.returncode == (0 if answer == "y" else 1)
        assert len(client.stats(topic).topics) == (0 if answer == "y" else 1)


@pytest.mark.parametrize("typed", [True, False])
def test_nothing_moves_while_a_person_types(site: Site, typed: bool) -> None:
    """On a terminal: what is typed stands between what moves, and both are unreadable."""
    nsqd, topic = site.nsqd(), unique()
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("pub", topic, "-t", tcp(nsqd)),
        stdin=theirs if typed else subprocess.PIPE,
        stdout=theirs,
        stderr=theirs,
        env={**environment(), "TERM": "xterm"},
    )
    os.close(theirs)
    shown = b""
    try:
        if typed:
            os.write(ours, b"a\nb\n\x04")
        else:
            process.communicate(b"a\nb\n", timeout=60)
        while b"2 messages (" not in shown:
            shown += os.read(ours, 1000)
        assert process.wait(60) == 0
    finally:
        process.kill()
        os.close(ours)
    # What moves is drawn with control sequences.
    assert (b"\x1b[" in shown) is not typed, shown


@pytest.mark.parametrize("action", ["create", "delete"])
def test_a_bad_name_is_one_sentence(commands: Commands, action: str) -> None:
    assert commands("topic", action, "no spaces", "-H", "127.0.0.1:1").returncode == 2


def test_ports_that_are_taken_for_each_other(commands: Commands, site: Site) -> None:
    nsqd = site.nsqd()
    result = commands("stat", "--once", "-H", tcp(nsqd))
    assert result.returncode == 1
    assert "4150" in result.stdout.decode() and "4151" in result.stdout.decode()
    result = commands("pub", unique(), "-t", http(nsqd), stdin=b"x\n")
    assert result.returncode == 1
    assert "HTTP port" in sentence(result)


def test_stat_of_an_unknown_topic(commands: Commands, site: Site) -> None:
    result = commands("stat", "--once", unique("none"), "-H", http(site.nsqd()))
    assert result.returncode == 1
    assert "no such topic" in sentence(result)


def test_pub_deferred_to_the_nsqds_that_nsqlookupd_lists(commands: Commands, site: Site) -> None:
    lookupd = site.own_nsqlookupd()
    nsqd, topic = site.own_nsqd(f"-lookupd-tcp-address={tcp(lookupd)}"), unique()
    with NsqdHTTP(nsqd.http_address) as client, LookupdHTTP(lookupd.http_address) as asked:
        client.create_topic(topic)
        client.create_channel(topic, "c")
        site.eventually(lambda: len(asked.nodes()) == 1)
        result = commands("pub", topic, "--defer", "60", "-l", http(lookupd), stdin=b"one\n")
        assert result.returncode == 0, result.stderr
        assert b"published 1 message (3 bytes)" in result.stdout
        site.eventually(lambda: client.stats(topic).topics[0].channels[0].deferred_count == 1)


@pytest.mark.parametrize("value", ["-1", "nan", "soon", "inf"])
def test_pub_with_a_bad_defer(commands: Commands, value: str) -> None:
    result = commands("pub", "t", f"--defer={value}")
    assert result.returncode == 2
    sentence(result)
