"""nsqds that vanish and come back: Reader and Writer do too, and publishes say the truth."""

from __future__ import annotations

from collections import Counter

import pytest

from gnsqsync.errors import NotSent, OutcomeUnknown, PublishError
from tests.integration.conftest import Client, address
from tests.support.servers import Site
from tests.support.worlds import World


def test_nsqd_killed_in_the_middle_of_a_run(
    client: Client, site: Site, world: World, topic: str
) -> None:
    # Without a memory queue the real nsqd writes each message before its OK.
    nsqd = site.own_nsqd("-mem-queue-size=0")
    writer = client.writer(nsqd, publish_timeout=10)
    outcome: dict[str, str] = {}
    handled: Counter[str] = Counter()
    stopped: list[bool] = []

    def publish(who: int) -> None:
        number = 0
        while not stopped:
            body = f"{who}-{number}"
            number += 1
            try:
                writer.publish(topic, body)
                outcome[body] = "ok"
            except PublishError as error:
                outcome[body] = type(error).__name__

    reader = client.consume(
        topic, lambda m: handled.update([m.body.decode()]), nsqd, max_in_flight=50
    )
    tasks = [world.spawn(publish, who) for who in range(4)]
    world.eventually(lambda: len(handled) > 200, 30)
    # The real nsqd loses a queue that was never synced, which it does every two seconds.
    world.sleep(2.5)
    nsqd.kill()
    at_kill = len(outcome)
    world.sleep(1.0)
    nsqd.start()
    world.eventually(lambda: len(outcome) > at_kill + 200, 30)
    stopped.append(True)
    for task in tasks:
        task.join(30)
    acknowledged = {body for body, what in outcome.items() if what == "ok"}
    if site.kind == "real":
        # In flight at the kill is lost by nsqd itself (nsq-reference 6.2): at most max_in_flight.
        world.eventually(lambda: len(acknowledged - set(handled)) <= 50, 30)
    last = max(int(body.split("-")[1]) for body in acknowledged if body.startswith("0-"))
    world.eventually(lambda: handled[f"0-{last}"], 30)
    # What never left was never handled; what is unknown may have been.
    not_sent = {body for body, what in outcome.items() if what == "NotSent"}
    assert not_sent.isdisjoint(handled)
    assert set(outcome.values()) <= {"ok", "NotSent", "OutcomeUnknown"}
    # One PUB of each publisher can be under way when nsqd dies.
    assert sum(what == "OutcomeUnknown" for what in outcome.values()) <= 4
    assert reader.stats().connections[0].connected_seconds < 30


def test_a_writer_goes_to_the_nsqd_that_lives(
    client: Client, site: Site, world: World, topic: str
) -> None:
    first, second = site.own_nsqd(), site.own_nsqd()
    writer = client.writer(first, second)
    writer.connect()
    assert len(writer.stats().connections) == 2
    first.kill()
    outcomes: Counter[str] = Counter()
    for n in range(100):
        try:
            writer.publish(topic, f"{n}")
            outcomes["ok"] += 1
        except OutcomeUnknown:
            outcomes["unknown"] += 1
    assert outcomes["ok"] >= 99
    first.start()

    def both_again() -> bool:
        writer.publish(topic, "more")
        return len(writer.stats().connections) == 2

    world.eventually(both_again)


def test_failover_prefers_the_first_and_returns_to_it(
    client: Client, site: Site, world: World, topic: str
) -> None:
    first, second = site.own_nsqd(), site.own_nsqd()
    writer = client.writer(first, second, policy="failover")
    for _ in range(5):
        writer.publish(topic, "a")
    assert [c.address for c in writer.stats().connections] == [address(first)]
    first.stop()
    world.eventually(lambda: not writer.is_connected)
    writer.publish(topic, "b")
    assert [c.address for c in writer.stats().connections] == [address(second)]
    first.start()

    def first_again() -> bool:
        writer.publish(topic, "c")
        return address(first) in [c.address for c in writer.stats().connections]

    world.eventually(first_again)


def test_a_publish_survives_a_restart_within_its_timeout(
    client: Client, site: Site, world: World, topic: str
) -> None:
    nsqd = site.own_nsqd()
    writer = client.writer(nsqd, publish_timeout=20)
    writer.publish(topic, "before")
    nsqd.stop()
    # Before the loss is seen a publish would still leave, and its outcome be unknown.
    world.eventually(lambda: not writer.is_connected)
    task = world.spawn(writer.publish, topic, "during")
    world.sleep(0.5)
    assert not task.done
    nsqd.start()
    task.join(25)


def test_nobody_there_is_not_sent(client: Client, world: World, topic: str) -> None:
    from gnsqsync import Writer

    writer = Writer("127.0.0.1:1", runtime=world.runtime)
    with pytest.raises(NotSent, match=r"no nsqd could be reached within 0.3 s.*127.0.0.1:1") as e:
        writer.publish(topic, b"x", timeout=0.3)
    assert e.value.causes
    assert e.value.retriable
    assert writer.stats().not_sent == 1
    writer.close()


def test_a_reader_survives_a_restart_and_its_messages_are_orphaned(
    client: Client, site: Site, world: World, topic: str
) -> None:
    nsqd = site.own_nsqd()
    kept = []

    def handler(message: object) -> None:
        message.detach()  # type: ignore[attr-defined]
        kept.append(message)

    client.writer(nsqd).publish(topic, b"x")
    reader = client.consume(topic, handler, nsqd)
    world.eventually(lambda: kept)
    nsqd.stop()
    world.eventually(lambda: not reader.stats().connections)
    assert not kept[0].is_alive
    assert kept[0].finish() is False
    assert kept[0].touch() is False
    nsqd.start()
    world.eventually(lambda: len(kept) == 2, 20)
    assert kept[1].id == kept[0].id
    assert kept[1].attempts == 2
    assert kept[1].finish() is True
