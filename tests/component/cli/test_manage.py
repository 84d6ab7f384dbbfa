"""``gnsqsync topic`` and ``gnsqsync channel``, in this process, on the embedded nsqd."""

from __future__ import annotations

import io
import signal
import socket
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from gnsqsync import LookupdHTTP, NsqdHTTP
from gnsqsync.cli import manage
from gnsqsync.cli.app import run_command
from gnsqsync.embedded import Nsqd, Nsqlookupd


class Result(NamedTuple):
    exit_code: int
    output: str


class Commands:
    """Runs commands on one nsqd, and looks at what became of it."""

    def __init__(self, nsqd: Nsqd, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.address = nsqd.http_address
        self.http = NsqdHTTP(self.address)

    def run(self, *words: str) -> Result:
        code = run_command([*words, "--nsqd-http-address", self.address])
        return Result(code, "".join(self._capsys.readouterr()))

    def done(self, *words: str) -> str:
        result = self.run(*words)
        assert result.exit_code == 0, result.output
        return result.output

    def channels(self) -> dict[str, tuple[int, bool]]:
        """Depth and pause of each channel of topic ``t``."""
        (topic,) = self.http.stats("t").topics
        return {c.channel_name: (c.depth, c.paused) for c in topic.channels}

    def topics(self) -> dict[str, bool]:
        return {topic.topic_name: topic.paused for topic in self.http.stats().topics}


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Nsqd]:
    with Nsqd() as server:
        yield server


@pytest.fixture
def commands(nsqd: Nsqd, capsys: pytest.CaptureFixture[str]) -> Iterator[Commands]:
    made = Commands(nsqd, capsys)
    yield made
    for topic in made.topics():
        made.http.delete_topic(topic)
    made.http.close()


def test_a_topic_from_create_to_delete(commands: Commands) -> None:
    url = f"http://{commands.address}"
    assert commands.done("topic", "create", "t") == f"{url}: topic 't' created\n"
    assert commands.done("topic", "pause", "t") == f"{url}: topic 't' paused\n"
    assert commands.topics() == {"t": True}
    assert commands.done("topic", "unpause", "t") == f"{url}: topic 't' unpaused\n"
    assert commands.topics() == {"t": False}
    assert commands.done("topic", "delete", "t", "--yes") == f"{url}: topic 't' deleted\n"
    assert commands.topics() == {}


def test_a_channel_from_create_to_delete(commands: Commands) -> None:
    commands.done("topic", "create", "t")
    commands.done("channel", "create", "t", "ch")
    commands.http.mpub("t", [b"1", b"2"])
    commands.done("channel", "pause", "t", "ch")
    assert commands.channels() == {"ch": (2, True)}
    commands.done("channel", "empty", "t", "ch", "--yes")
    commands.done("channel", "unpause", "t", "ch")
    assert commands.channels() == {"ch": (0, False)}
    commands.done("channel", "delete", "t", "ch", "--yes")
    assert commands.channels() == {}


@pytest.mark.parametrize("action", ["delete", "empty"])
def test_a_command_that_throws_messages_away_asks_on_a_terminal(
    commands: Commands, action: str
) -> None:
    commands.http.pub("t", b"1")
    result = commands.run("topic", action, "t")
    assert result.exit_code == 2
    assert "this is not a terminal; give --yes" in result.output
    assert commands.http.stats("t").topics[0].depth == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("topic", "pause", "nobody"), "no such topic 'nobody'"),
        (("channel", "pause", "nobody", "ch"), "no such channel 'ch' of topic 'nobody'"),
        (("channel", "create", "nobody", "ch"), "no such topic 'nobody'"),
    ],
)
def test_missing_topics_and_channels(commands: Commands, words: tuple[str, ...], text: str) -> None:
    result = commands.run(*words)
    assert (result.exit_code, text in result.output) == (1, True), result.output
    assert commands.address in result.output, "which server has none"
    assert commands.topics() == {}


def test_create_on_the_other_kind_of_server(
    commands: Commands, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has a page to create a topic, which would do nothing for who meant the other."""
    assert run_command(["topic", "create", "t", "-l", commands.address]) == 1
    assert "this may be nsqd; nsqlookupd's HTTP port is 4161" in capsys.readouterr().err
    assert commands.topics() == {}
    with Nsqlookupd() as lookupd, LookupdHTTP(lookupd.http_address) as http:
        assert run_command(["topic", "create", "t", "-H", lookupd.http_address]) == 1
        assert "this may be nsqlookupd; nsqd's HTTP port is 4151" in capsys.readouterr().err
        assert http.topics() == ()


def test_an_nsqd_that_is_away(commands: Commands) -> None:
    words = ["topic", "create", "t", "--nsqd-http-address", "127.0.0.1:1"]
    result = commands.run(*words)
    assert result.exit_code == 1
    assert "http://127.0.0.1:1: " in result.output
    assert commands.topics() == {"t": False}, "the other one is asked all the same"


def test_servers_are_asked_at_the_same_time_and_told_of_in_order(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ask at once: each waits for the other, and the first is the slower one."""
    both = threading.Barrier(2, timeout=10)
    second_is_done = threading.Event()
    create = NsqdHTTP.create_topic

    def slowly(client: NsqdHTTP, topic: str) -> None:
        both.wait()
        if "localhost" in client.url:
            create(client, topic)
            second_is_done.set()
        else:
            assert second_is_done.wait(10)
            create(client, topic)

    monkeypatch.setattr(NsqdHTTP, "create_topic", slowly)
    other = f"localhost:{commands.address.rpartition(':')[2]}"
    code = manage.run(manage.Work("create", "t", None, [commands.address, other], []), yes=False)
    lines = "".join(commands._capsys.readouterr()).splitlines()
    assert code == 0
    assert [line.split(": ")[0] for line in lines] == [
        f"http://{commands.address}",
        f"http://{other}",
    ]


def test_ctrl_c_does_not_wait_for_a_server_that_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        work = manage.Work("create", "t", None, [address], [])

        def interrupt() -> None:
            connection, _ = silent.accept()
            with connection:
                connection.recv(1)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                # Until the request is cut.
                while connection.recv(65536):
                    pass

        asked = threading.Thread(target=interrupt)
        asked.start()
        with pytest.raises(KeyboardInterrupt):
            work.create()
        asked.join(5)
        assert not asked.is_alive()
        work.close()


def test_an_end_of_input_is_no_answer_and_ends_the_line(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.http.pub("t", b"1")
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    result = commands.run("topic", "empty", "t")
    assert result.exit_code != 0
    assert "? [y/N]: \n" in result.output, result.output
    assert commands.http.stats("t").topics[0].depth == 1


@pytest.mark.parametrize("kind", ["topic", "channel"])
@pytest.mark.parametrize("action", manage.ACTIONS)
def test_each_help_has_an_example(
    capsys: pytest.CaptureFixture[str], kind: str, action: str
) -> None:
    assert run_command([kind, action, "--help"]) == 0
    name = "orders billing" if kind == "channel" else "orders"
    assert f"Example: gnsqsync {kind} {action} {name}" in capsys.readouterr().out
