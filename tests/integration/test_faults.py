"""nsqds that vanish and come back: Reader and Writer do too, and publishes say the truth."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import pytest

from gnsqsync import Message, NsqdHTTP, Writer
from gnsqsync.errors import NotSent, OutcomeUnknown, PublishError
from tests.integration.conftest import Client, address
from tests.support.faultproxy import UP, FaultProxy, Trouble
from tests.support.servers import Server, Site
from tests.support.worlds import World


def test_nsqd_killed_in_the_middle_of_a_run(
    client: Client, site: Site, world: World, topic: str
) -> None:
    # Without a memory queue the real nsqd writes each message before its OK. A kill loses messages
    # that came after the last sync, so nsqd syncs each of them.
    nsqd = site.own_nsqd("-mem-queue-size=0", "-sync-every=1")
    writer = client.writer(nsqd, publish_timeout=10, outage="wait")
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
    world.eventually(lambda: len(handled) > 200)
    nsqd.kill()
    at_kill = len(outcome)
    world.sleep(0.5)
    nsqd.start()
    world.eventually(lambda: len(outcome) > at_kill + 200)
    stopped.append(True)
    for task in tasks:
        task.join(60)
    acknowledged = {body for body, what in outcome.items() if what == "ok"}
    if site.kind == "real":
        # In flight at the kill is lost by nsqd itself (docs/protocol/end#what-survives): at most
        # max_in_flight.
        world.eventually(lambda: len(acknowledged - set(handled)) <= 50)
    last = max(int(body.split("-")[1]) for body in acknowledged if body.startswith("0-"))
    world.eventually(lambda: handled[f"0-{last}"])
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
    # A start may take longer than a second on a machine that does other things too.
    writer = client.writer(nsqd, publish_timeout=20, outage="wait")
    writer.publish(topic, "before")
    nsqd.stop()
    # Before the loss is seen a publish would still leave, and its outcome be unknown.
    world.eventually(lambda: not writer.is_connected)
    task = world.spawn(writer.publish, topic, "during")
    world.sleep(0.5)
    assert not task.done
    nsqd.start()
    task.join(60)


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
    world.eventually(lambda: len(kept) == 2)
    assert kept[1].id == kept[0].id
    assert kept[1].attempts == 2
    assert kept[1].finish() is True


# An embedded nsqd that is killed forgets its messages, and so has none of them twice.
@pytest.mark.parametrize("server_kind", ["real"])
@pytest.mark.parametrize("latency", ["adaptive", "throughput"])
def test_copies_under_one_id_do_not_use_up_the_rdy(
    client: Client, site: Site, world: World, topic: str, latency: str
) -> None:
    """A killed nsqd reads both its topic's and its channel's file again. Of two messages with one
    id in flight it lets one be finished, and counts the other as long as the connection lives."""
    # Never synced, so that all of it is read again.
    nsqd = site.own_nsqd("-mem-queue-size=0", "-sync-every=1000000000", "-sync-timeout=1000h")
    with NsqdHTTP(nsqd.http_address) as http:
        http.create_topic(topic)
        http.create_channel(topic, "ch")
        nsqd.restart()
        for body in ("a", "b", "c"):
            http.pub(topic, body)
        world.eventually(lambda: http.stats(topic).topics[0].channels[0].depth == 3)
        nsqd.kill()
        nsqd.start()
        got: list[Message] = []

        def handler(message: Message) -> None:
            got.append(message)
            # So that copies come while their first ones are in flight: they get no answer.
            world.sleep(0.3)

        reader = client.reader(
            topic,
            handler,
            nsqd,
            max_in_flight=20,
            latency=latency,
            low_rdy_idle_timeout=0.5,
            rdy_redistribute_interval=0.2,
        )
        reader.start(block=False)
        world.eventually(lambda: {message.body for message in got} == {b"a", b"b", b"c"})
        world.eventually(lambda: not reader.stats().in_flight)
        reader.set_max_in_flight(2)
        http.pub(topic, "d")
        world.eventually(lambda: got[-1].body == b"d")


@pytest.mark.parametrize("server_kind", ["real"])
def test_a_copy_that_is_touched_when_the_other_is_finished_does_not_either(
    client: Client, site: Site, world: World, topic: str
) -> None:
    """nsqd refuses the TOUCH; the Reader then sends no FIN that would be refused as well."""
    nsqd = site.own_nsqd("-mem-queue-size=0", "-sync-every=1000000000", "-sync-timeout=1000h")
    with NsqdHTTP(nsqd.http_address) as http:
        http.create_topic(topic)
        http.create_channel(topic, "ch")
        nsqd.restart()
        http.pub(topic, "a")
        world.eventually(lambda: http.stats(topic).topics[0].channels[0].depth == 1)
        nsqd.kill()
        nsqd.start()
        held: list[Message] = []
        got: list[bytes] = []

        def handler(message: Message) -> None:
            got.append(message.body)
            if message.body == b"a":
                message.detach()
                held.append(message)

        reader = client.consume(
            topic, handler, nsqd, max_in_flight=1, rdy_redistribute_interval=0.2
        )
        world.eventually(lambda: held)
        # A copy that comes before the handler has begun is not handled.
        reader.set_max_in_flight(2)
        world.eventually(lambda: len(held) == 2)
        assert held[0].id == held[1].id
        held[0].finish()
        # Again, as the first may be sent together with the FIN, and in front of it.
        world.eventually(lambda: not held[1].touch())
        reader.set_max_in_flight(1)
        http.pub(topic, "b")
        world.eventually(lambda: got[-1] == b"b")


def test_a_publish_that_arrives_too_slowly_is_sent_again(
    client: Client, site: Site, world: World, topic: str
) -> None:
    """nsqd gives up in the middle of its body and calls that E_BAD_MESSAGE, which it is not."""
    with FaultProxy(site.nsqd().tcp_address) as proxy:
        writer = client.keep(
            Writer(proxy.text, runtime=world.runtime, heartbeat_interval=1.0, publish_timeout=30.0)
        )
        writer.publish(topic, b"x")
        proxy.order(Trouble(UP, "stall", 1000, 5.0))
        writer.publish(topic, b"x" * 10_000)
        assert proxy.accepted == 2
        assert writer.stats().published == 2


def test_a_tls_handshake_that_nsqd_gave_up_is_no_refusal(
    client: Client, site: Site, world: World, topic: str
) -> None:
    """After five seconds it says so in clear, with the code of features that it does not have."""
    # In the middle of the ClientHello of the first link.
    plans = [[Trouble(UP, "stall", 600, 6.0)]]
    nsqd = site.nsqd(*site.certificates.flags)
    with FaultProxy(nsqd.tcp_address, plan=lambda chance: plans.pop() if plans else []) as proxy:
        reader = client.reader(
            topic,
            print,
            nsqd_tcp_addresses=[proxy.text],
            connect_timeout=30.0,
            tls_ca_file=str(site.certificates.ca_file),
        )
        reader.start(block=False)
        world.eventually(lambda: reader.stats().connections)
        assert proxy.accepted == 2


def long_queue(nsqd: Server, topic: str, files: int) -> None:
    """Let the stopped nsqd find messages on disk for the channel, in so many files.

    All but the first are missing, but nsqd tries to remove each when it deletes the queue.
    """
    frames = (struct.pack(">qH", 1, 0) + b"%016x" % number + b"old" for number in range(4))
    queue = nsqd.data_path / f"{topic}:ch.diskqueue"
    Path(f"{queue}.000000.dat").write_bytes(b"".join(struct.pack(">i", 29) + f for f in frames))
    Path(f"{queue}.meta.dat").write_text(f"4\n0,0\n{files},0\n")


@pytest.mark.parametrize("server_kind", ["real"])
def test_a_reader_outlives_a_topic_whose_deletion_takes_long(
    client: Client, site: Site, world: World, topic: str
) -> None:
    """A SUB that waits for its end is answered with OK, and is one to the topic that is gone."""
    nsqd = site.own_nsqd("-mem-queue-size=0")
    with NsqdHTTP(nsqd.http_address, timeout=60, runtime=world.runtime) as http:
        http.create_topic(topic)
        http.create_channel(topic, "ch")
        nsqd.stop()
        long_queue(nsqd, topic, files=500_000)
        nsqd.start()
        held: list[Message] = []

        def handler(message: Message) -> None:
            message.detach()
            held.append(message)

        client.consume(topic, handler, nsqd, rdy_redistribute_interval=0.2, connect_timeout=60.0)
        world.eventually(lambda: held)
        http.delete_topic(topic)
        http.pub(topic, "new")
        world.eventually(lambda: held[-1].body == b"new")
