"""gnsqsync pub, manage.py nsq_publish and flask nsq publish with what nsqd has no place for."""

from __future__ import annotations

import json

import pytest

from gnsqsync import Reader
from tests.integration.conftest import address
from tests.integration.test_output_of_commands import CLI, MANAGE, NSQ, Commands, commands
from tests.support.scripted import Command, Connection, ScriptedNsqd, automatic, close

__all__ = ["commands"]  # a fixture

FRAMEWORKS = pytest.mark.parametrize(
    "publish",
    [(*MANAGE, "nsq_publish"), (*NSQ, "publish")],
    ids=["django", "flask"],
)


@FRAMEWORKS
def test_an_argument_that_is_no_utf_8_is_sent_as_it_is(
    commands: Commands, publish: tuple[str, ...]
) -> None:
    assert commands(*publish, commands.topic, "caf\udce9", "zwölf") == (0, "")
    with Reader(
        commands.topic, "c", nsqd_tcp_addresses=address(commands.nsqd), max_in_flight=2
    ) as reader:
        bodies = set()
        for message in reader:
            bodies.add(message.body)
            message.finish()
            if len(bodies) == 2:
                break
    assert bodies == {b"caf\xe9", "zwölf".encode()}


@FRAMEWORKS
def test_count_of_published_lines_is_told_when_a_later_line_is_wrong(
    commands: Commands, publish: tuple[str, ...]
) -> None:
    lines = b"line\n" * 200 + b"x" * 2_000_000
    code, said = commands(*publish, commands.topic, stdin=lines)
    assert code == 1
    assert f"200 published to {commands.topic}, then: " in said
    assert "has 2000000 bytes" in said
    assert commands.published() == 200


@FRAMEWORKS
def test_a_topic_is_checked_where_there_is_nothing_to_publish(
    commands: Commands, publish: tuple[str, ...]
) -> None:
    code, said = commands(*publish, "no topic")
    assert code == 1
    assert "topic name 'no topic' is not valid" in said
    assert "published" not in said


def test_pub_tells_how_many_of_a_batch_nsqd_has(commands: Commands) -> None:
    """What one read gives of a file may be more than one MPUB can take."""
    bodies = [b"x" * 5_200_000, *[b"0123456789"] * 4000]
    (commands.folder / "bodies").write_bytes(b"\n".join(bodies))

    def take_the_first(connection: Connection, command: Command) -> None:
        if len(nsqd.received("MPUB")) == 1:
            connection.response()
        else:
            connection.error("E_MPUB_FAILED MPUB failed disk full")
            close()(connection)

    with ScriptedNsqd([automatic(hooks={"MPUB": take_the_first})]) as nsqd:
        words = (*CLI, "pub", commands.topic, "bodies", "--batch=10000", "--timeout=60", "--json")
        words += ("--max-msg-size=8000000", "-t", "{}:{}".format(*nsqd.address))
        assert commands(*words, redirected="> counts")[0] == 1
        first, _ = nsqd.received("MPUB")
    counts = json.loads((commands.folder / "counts").read_bytes())
    accepted = int.from_bytes(first.body[:4], "big")
    assert counts["published"] == accepted
    assert counts["bytes"] == sum(map(len, bodies[:accepted]))
    assert "E_MPUB_FAILED" in counts["error"]
