"""Secrets and rights that change while a Writer is connected; scripted nsqds check them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from gnsqsync import Writer
from gnsqsync.errors import AuthFailed, NotSent, PublishError, Refused
from tests.component.conftest import Client
from tests.support import scripted
from tests.support.scripted import Command, ScriptedNsqd, automatic
from tests.support.worlds import World

FAILED = "E_AUTH_FAILED AUTH failed"
UNAUTHORIZED = 'E_UNAUTHORIZED AUTH failed for PUB on "t" ""'


class Guard:
    """Rights as nsqd has them: asked for at AUTH, and again at each publish (the ttl is over)."""

    def __init__(self) -> None:
        self.secret = "first"
        self.topics = {"t", "other"}
        # True while nsqd still goes by what it was told at AUTH.
        self.cached = False
        self.stored: list[bytes] = []
        self._of: dict[scripted.Connection, tuple[str, set[str]]] = {}
        hooks = {"AUTH": self._auth, **dict.fromkeys(("PUB", "DPUB", "MPUB"), self._publish)}
        self.nsqds = [ScriptedNsqd([automatic(hooks=hooks, auth_required=True)]) for _ in range(2)]

    def read(self) -> str:
        """The function that a Writer gets."""
        return self.secret

    def _auth(self, connection: scripted.Connection, command: Command) -> None:
        secret = (command.body or b"").decode()
        if secret != self.secret:
            self._refuse(connection, FAILED)
        self._of[connection] = secret, set(self.topics)
        connection.answer(command)

    def _publish(self, connection: scripted.Connection, command: Command) -> None:
        secret, topics = self._of[connection]
        if not self.cached:
            topics = self.topics
            if secret != self.secret:
                self._refuse(connection, FAILED)
        if command.parameters[0] not in topics:
            self._refuse(connection, UNAUTHORIZED)
        self.stored.append(command.body or b"")
        connection.response()

    @staticmethod
    def _refuse(connection: scripted.Connection, text: str) -> None:
        connection.error(text)
        scripted.close()(connection)
        raise scripted.Ended


@pytest.fixture
def guard() -> Iterator[Guard]:
    guard = Guard()
    with guard.nsqds[0], guard.nsqds[1]:
        yield guard


def at_once(writer: Writer, world: World) -> None:
    writer.publish("t", "x", timeout=60)


def deferred(writer: Writer, world: World) -> None:
    writer.publish("t", "x", defer=1.0, timeout=60)


def several(writer: Writer, world: World) -> None:
    writer.publish_many("t", ["x", "y"], timeout=60)


def later(writer: Writer, world: World) -> None:
    future = writer.publish_async("t", "x")
    world.eventually(future.done)
    future.result(0)


Publish = Callable[[Writer, World], None]
WAYS = pytest.mark.parametrize("publish", [at_once, deferred, several, later])


@WAYS
@pytest.mark.parametrize("copies", [1, 2], ids=["one", "copies"])
def test_a_secret_that_was_replaced_costs_no_publish(
    client: Client, guard: Guard, publish: Publish, copies: int
) -> None:
    writer = client.writer(*guard.nsqds, auth_secret=guard.read, copies=copies)
    for secret in ("first", "second", "third"):
        guard.secret = secret
        guard.stored.clear()
        publish(writer, client.world)
        assert len(guard.stored) == (copies)
    stats = writer.stats()
    assert (stats.refused, stats.not_sent, stats.outcome_unknown) == (0, 0, 0)


@WAYS
def test_a_right_that_was_given_meanwhile_counts(
    client: Client, guard: Guard, publish: Publish
) -> None:
    """The secret is the same. nsqd knows old rights until their ttl is over, a new one does not."""
    guard.cached = True
    guard.topics = {"other"}
    writer = client.writer(guard.nsqds[0], auth_secret="first")
    writer.publish("other", "x")
    guard.topics = {"other", "t"}
    guard.stored.clear()
    publish(writer, client.world)
    assert len(guard.stored) == 1


@pytest.mark.parametrize("copies", [1, 2], ids=["one", "copies"])
def test_the_window_is_not_lost(client: Client, world: World, guard: Guard, copies: int) -> None:
    writer = client.writer(*guard.nsqds, auth_secret=guard.read, copies=copies)
    writer.publish("t", "before")
    guard.secret = "second"
    guard.stored.clear()
    futures = [writer.publish_async("t", str(n)) for n in range(500)]
    for future in futures:
        world.eventually(future.done)
        assert future.result(0) is None
    assert Counter(guard.stored) == {str(n).encode(): copies for n in range(500)}
    assert writer.stats().not_sent == 0


def test_publishers_side_by_side_lose_nothing(client: Client, world: World, guard: Guard) -> None:
    writer = client.writer(*guard.nsqds, auth_secret=guard.read)
    writer.publish("t", "before")
    guard.secret = "second"
    guard.stored.clear()
    tasks = [world.spawn(writer.publish, "t", str(n)) for n in range(20)]
    for task in tasks:
        task.join(60)
    assert Counter(guard.stored) == {str(n).encode(): 1 for n in range(20)}


def fails(publish: Publish, writer: Writer, world: World) -> PublishError:
    with pytest.raises(PublishError) as caught:
        publish(writer, world)
    return caught.value


@WAYS
def test_a_secret_that_stays_wrong_is_told_at_once(
    client: Client, guard: Guard, publish: Publish
) -> None:
    writer = client.writer(*guard.nsqds, auth_secret="first", publish_timeout=60)
    writer.publish("t", "before")
    guard.secret = "second"
    error = fails(publish, writer, client.world)
    assert isinstance(error, NotSent)
    assert isinstance(error.causes[-1], AuthFailed)
    assert str(error).startswith("no nsqd accepts this client: ")
    assert "E_AUTH_FAILED AUTH failed" in str(error)
    # Each nsqd was dialled once more for it.
    assert sum(len(nsqd.received("AUTH")) for nsqd in guard.nsqds) <= 4
    guard.secret = "first"
    client.world.eventually(lambda: not writer.stats().outage_seconds)
    publish(writer, client.world)


@WAYS
def test_a_topic_that_stays_forbidden_is_refused_by_a_fresh_connection(
    client: Client, guard: Guard, publish: Publish
) -> None:
    guard.topics = {"other"}
    writer = client.writer(guard.nsqds[0], auth_secret=guard.read)
    writer.publish("other", "x")
    error = fails(publish, writer, client.world)
    assert isinstance(error, Refused)
    assert error.code == "E_UNAUTHORIZED"
    # Two connections: a fresh one for the second publish.
    assert len(guard.nsqds[0].received("AUTH")) == 2
    # The refusal of a connection that was dialled for the publish is final.
    assert isinstance(fails(publish, writer, client.world), Refused)
    assert len(guard.nsqds[0].received("AUTH")) == 3


def test_a_window_with_a_wrong_secret_fails_at_once(
    client: Client, world: World, guard: Guard
) -> None:
    writer = client.writer(guard.nsqds[0], auth_secret="first", publish_timeout=60)
    writer.publish("t", "before")
    guard.secret = "second"
    futures = []
    told = 0
    for n in range(200):
        try:
            futures.append(writer.publish_async("t", str(n)))
        except NotSent:
            told += 1
    for future in futures:
        world.eventually(future.done)
        assert isinstance(future.exception(0), NotSent)
    assert futures
    assert guard.stored == [b"before"]
    assert writer.stats().not_sent == len(futures) + told
    # The room of each was given back, once.
    publisher = writer._publisher()
    assert publisher._window._publishes == publisher._window._bytes == 0


def test_a_close_ends_what_was_put_off(client: Client, world: World, guard: Guard) -> None:
    writer = client.writer(guard.nsqds[0], auth_secret=guard.read)
    writer.publish("t", "before")
    guard.secret = "second"
    futures = [writer.publish_async("t", str(n)) for n in range(50)]
    writer.close()
    for future in futures:
        world.eventually(future.done)
    lost = [future for future in futures if future.exception(0) is not None]
    assert len(guard.stored) == 1 + 50 - len(lost)
