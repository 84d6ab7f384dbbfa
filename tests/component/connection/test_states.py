"""The states of a connection: which come, and that none comes back."""

from __future__ import annotations

import pytest

from gnsqsync import Message, Reader
from gnsqsync.connection.link import State
from gnsqsync.connection.subscribed import SubscribedConnection
from tests.component.conftest import Client
from tests.support import scripted
from tests.support.scripted import Command, ScriptedNsqd, automatic
from tests.support.worlds import World


def connection_of(reader: Reader) -> SubscribedConnection:
    running = reader._running()
    return running.subscription.connections()[0]


def open_one(client: Client, world: World, nsqd: ScriptedNsqd) -> SubscribedConnection:
    reader = client.consume(lambda message: None, nsqd)
    world.eventually(lambda: nsqd.received("RDY"))
    connection = connection_of(reader)
    assert connection.state is State.OPEN
    return connection


def test_from_cls_to_its_answer_to_the_end(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd:
        connection = open_one(client, world, nsqd)
        connection.start_closing()
        assert connection.end_was_asked
        world.eventually(lambda: connection.state is State.DRAINED)
        connection.close()
        assert connection.state is not State.CLOSING
        world.eventually(lambda: connection.is_closed)
        # What comes too late changes nothing.
        connection.start_closing()
        connection.cut()
        assert connection.state is State.CLOSED
        assert len(nsqd.received("CLS")) == 1


def test_cls_is_sent_once(client: Client, world: World) -> None:
    def silent(connection: scripted.Connection, command: Command) -> None:
        return

    with ScriptedNsqd([automatic(hooks={"CLS": silent})]) as nsqd:
        connection = open_one(client, world, nsqd)
        connection.start_closing()
        connection.start_closing()
        assert connection.state is State.CLOSING
        world.eventually(lambda: nsqd.received("CLS"))
        connection.cut()
        world.eventually(lambda: connection.is_closed)
        assert len(nsqd.received("CLS")) == 1


def test_an_end_that_nobody_asked_for(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd:
        connection = open_one(client, world, nsqd)
        nsqd.drop_connections()
        world.eventually(lambda: connection.is_closed)
        assert not connection.end_was_asked


@pytest.mark.parametrize("cut_at", ["IDENTIFY", "SUB"])
def test_an_end_while_it_is_dialled(client: Client, world: World, cut_at: str) -> None:
    cut: list[SubscribedConnection] = []

    def end(connection: scripted.Connection, command: Command) -> None:
        world_connection = next(iter(reader._running().subscription._dialling))
        cut.append(world_connection)
        world_connection.close()

    def handle(message: Message) -> None:
        return

    with ScriptedNsqd([automatic(hooks={cut_at: end})]) as nsqd:
        reader = client.reader(handle, nsqd)
        reader.start(block=False)
        world.eventually(lambda: cut)
        assert cut[0].end_was_asked
        assert cut[0].state is State.CLOSING
