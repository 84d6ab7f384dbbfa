"""A Writer beside real and embedded nsqds: neighbours, losses, sizes, fail-back, closes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from gnsqsync import NsqdHTTP, Writer
from gnsqsync.errors import BadMessage, ClosedError, ConfigError, OutcomeUnknown, Refused
from tests.integration.conftest import Client, address, url
from tests.support.servers import Server, Site
from tests.support.worlds import World


def depth(nsqd: Server, topic: str) -> int:
    with NsqdHTTP(url(nsqd)) as http:
        return sum(t.depth for t in http.stats(topic=topic).topics)


def test_one_publish_in_a_plain_script(world: World, nsqd: Server, topic: str) -> None:
    """All there is to it: no loop, no callback, and a return means that nsqd has it."""
    with Writer(address(nsqd), runtime=world.runtime) as writer:
        writer.publish(topic, "x")
    assert depth(nsqd, topic) == 1


@pytest.mark.parametrize("how", ["publish", "publish_many", "defer"])
def test_a_message_too_big_for_us_never_leaves(
    client: Client, nsqd: Server, topic: str, how: str
) -> None:
    writer = client.writer(nsqd, max_msg_size=100)
    writer.publish(topic, b"x" * 100)
    with pytest.raises(ConfigError, match="101 bytes; max_msg_size allows 100"):
        if how == "publish_many":
            writer.publish_many(topic, [b"x", b"x" * 101])
        else:
            writer.publish(topic, b"x" * 101, defer=1 if how == "defer" else None)
    assert writer.is_connected
    writer.publish(topic, b"x")
    assert depth(nsqd, topic) == 2
    assert writer.stats().connections[0].unanswered == 0


def test_a_message_too_big_for_nsqd_takes_no_neighbours_along(
    client: Client, site: Site, world: World, topic: str
) -> None:
    """nsqd closes the connection on everybody; what it had not read is sent again."""
    strict = site.nsqd("-max-msg-size=1000")
    writer = client.writer(strict)
    writer.connect()
    outcomes: dict[tuple[int, int], Any] = {}
    rounds = 10

    def publish(who: int) -> None:
        for n in range(rounds):
            too_big = who == 7 and n == rounds // 2
            try:
                writer.publish(topic, b"x" * (1001 if too_big else 10), timeout=60)
                outcomes[who, n] = "OK"
            except Exception as error:
                outcomes[who, n] = error

    tasks = [world.spawn(publish, who) for who in range(16)]
    for task in tasks:
        task.join(60)
    failures = {key: what for key, what in outcomes.items() if what != "OK"}
    assert list(failures) == [(7, rounds // 2)]
    refused = failures[7, rounds // 2]
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, BadMessage)
    assert depth(strict, topic) == 16 * rounds - 1
    stats = writer.stats()
    assert (stats.published, stats.refused, stats.outcome_unknown) == (16 * rounds - 1, 1, 0)


def test_publishes_go_on_over_a_restart(
    client: Client, site: Site, world: World, topic: str
) -> None:
    nsqd = site.own_nsqd()
    writer = client.writer(nsqd, publish_timeout=30)
    writer.publish(topic, "before")
    nsqd.restart()
    world.eventually(lambda: not writer.is_connected)
    writer.publish(topic, "after")
    assert depth(nsqd, topic) == 2
    assert writer.stats().published == 2


@pytest.mark.parametrize("policy", ["round_robin", "failover"])
def test_a_killed_nsqd_is_left_out_and_comes_back(
    client: Client, site: Site, world: World, topic: str, policy: str
) -> None:
    first, second = site.own_nsqd(), site.nsqd()
    writer = client.writer(first, second, policy=policy)
    writer.connect()
    writer.publish(topic, "x")
    first.kill()
    world.eventually(lambda: len(writer.stats().connections) == 1)
    before = depth(second, topic)
    for _ in range(10):
        writer.publish(topic, "x")
    assert depth(second, topic) == before + 10
    first.start()

    def is_back() -> bool:
        writer.publish(topic, "x")
        return len(writer.stats().connections) == 2

    world.eventually(is_back)
    before = depth(first, topic)
    for _ in range(10):
        writer.publish(topic, "x")
    gained = depth(first, topic) - before
    assert gained == (10 if policy == "failover" else 5)


def test_no_acknowledged_message_is_missing_after_kills(
    client: Client, site: Site, world: World, topic: str
) -> None:
    """With retry_unknown every publish ends well; some messages are there twice."""
    first, second = site.own_nsqd(), site.nsqd()
    writer = client.writer(first, second, retry_unknown=True, publish_timeout=30)
    writer.connect()
    bodies = [f"{n}" for n in range(400)]

    def publish(part: list[str]) -> None:
        for body in part:
            writer.publish(topic, body)

    tasks = [world.spawn(publish, bodies[n::4]) for n in range(4)]
    world.eventually(lambda: writer.stats().published > 50)
    # Cut, not killed: what it has acknowledged must stay in its memory.
    for connection in writer._publisher().pool.table.connections():
        if connection.nsqd_address == address(first):
            connection.cut()
    for task in tasks:
        task.join(60)
    got: set[str] = set()
    client.consume(topic, lambda m: got.add(m.body.decode()), first, second, max_in_flight=100)
    world.eventually(lambda: got == set(bodies))
    assert writer.stats().published == 400


def test_a_stopped_process_is_an_unknown_outcome_within_the_deadline(
    client: Client, site: Site, world: World, topic: str
) -> None:
    nsqd = site.own_nsqd()
    writer = client.writer(nsqd, publish_timeout=60)
    writer.publish(topic, "x")
    os.kill(nsqd.pid, signal.SIGSTOP)
    try:
        # The signal takes its time to reach every thread.
        tasks = Path(f"/proc/{nsqd.pid}/task")
        world.eventually(
            lambda: all("State:\tT" in (task / "status").read_text() for task in tasks.iterdir())
        )
        started = time.monotonic()
        with pytest.raises(OutcomeUnknown):
            writer.publish(topic, "y", timeout=0.5)
        assert time.monotonic() - started < 30
    finally:
        os.kill(nsqd.pid, signal.SIGCONT)
    # Its late OK is not taken for that of the next one.
    writer.publish(topic, "z", timeout=60)
    world.eventually(lambda: depth(nsqd, topic) == 3)
    assert writer.stats().published == 3


def test_close_waits_for_publishes_under_way(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    writer = client.writer(nsqd)
    writer.connect()
    outcomes: list[str] = []

    def publish() -> None:
        while True:
            try:
                writer.publish(topic, "x")
                outcomes.append("OK")
            except ClosedError:
                return

    tasks = [world.spawn(publish) for _ in range(8)]
    world.eventually(lambda: len(outcomes) > 100)
    writer.close()
    for task in tasks:
        task.join()
    # Nothing but OK and ClosedError, and nsqd has exactly what was acknowledged.
    assert depth(nsqd, topic) == len(outcomes)


def test_many_futures_do_not_grow_without_bound(
    client: Client, nsqd: Server, world: World, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnsqsync.writer.async_window.BACKLOG_PUBLISHES", 50)
    writer = client.writer(nsqd, publish_timeout=30)
    most = 0
    futures = []
    writer.connect()
    outbox = writer._publisher().pool.table.connections()[0].send_queue
    for _ in range(2000):
        futures.append(writer.publish_async(topic, "x"))
        most = max(most, len(outbox.pending) + len(outbox.slots))
    world.eventually(lambda: all(future.done() for future in futures))
    assert most <= 50
    assert depth(nsqd, topic) == 2000
    assert writer.stats().published == 2000
