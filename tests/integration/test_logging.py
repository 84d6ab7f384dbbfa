"""What a normal life logs, at both servers: nothing above INFO, and each line with its fields."""

from __future__ import annotations

import logging

import pytest

from tests.integration.conftest import Client, address, url
from tests.support.servers import Server, Site
from tests.support.worlds import World

LOGGERS = {
    f"gnsqsync.{part}"
    for part in ("reader", "writer", "connection", "lookupd", "timer", "http", "runtime")
}


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "gnsqsync")


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [r for r in caplog.records if r.name.startswith("gnsqsync")]


def texts(records: list[logging.LogRecord]) -> list[str]:
    return [f"{record.name} {record.levelname} {record.getMessage()}" for record in records]


def test_a_normal_start_and_stop_is_quiet(
    client: Client, site: Site, world: World, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    lookupd = site.own_nsqlookupd()
    nsqd = site.own_nsqd(f"-lookupd-tcp-address={address(lookupd)}")
    got: list[bytes] = []
    # The topic is not there yet, which is normal too.
    by_lookup = client.consume(
        topic,
        lambda m: got.append(m.body),
        on_giving_up="discard",
        lookupd_http_addresses=url(lookupd),
        lookupd_poll_interval=0.2,
        channel="a",
    )
    with client.writer(nsqd) as writer:
        writer.publish(topic, "x")
        direct = client.consume(
            topic, lambda m: got.append(m.body), nsqd, channel="b", dead_letter_topic="dead"
        )
        world.eventually(lambda: by_lookup.stats().connections and direct.stats().connections)
        writer.publish(topic, "y")
        world.eventually(lambda: got.count(b"y") == 2)
    for reader in (by_lookup, direct):
        reader.stop()
        result = reader.join(60)
        assert result is not None
        assert result.clean
    records = ours(caplog)
    assert texts([r for r in records if r.levelno > logging.INFO]) == []
    assert {record.name for record in records} <= LOGGERS
    closed = [r for r in records if "closed as asked" in r.getMessage()]
    assert {record.levelno for record in closed} == {logging.DEBUG}
    assert len(closed) == 3


def test_lines_carry_their_fields(
    client: Client, nsqd: Server, world: World, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(message: object) -> None:
        raise RuntimeError("downstream")

    client.writer(nsqd).publish(topic, "x")
    reader = client.consume(
        topic,
        fail,
        nsqd,
        max_attempts=2,
        requeue_delay=0,
        backoff="every_failure",
        backoff_multiplier=0.05,
        on_giving_up="discard",
    )
    world.eventually(lambda: reader.stats().gave_up == 1)
    reader.stop()
    reader.join(60)

    def fields(start: str) -> dict[str, object]:
        found = next(r for r in ours(caplog) if r.getMessage().startswith(start))
        names = ("topic", "channel", "nsqd", "message_id", "attempts")
        return {name: getattr(found, name) for name in names if hasattr(found, name)}

    where = {"topic": topic, "channel": "ch"}
    at = {**where, "nsqd": address(nsqd)}
    assert fields(f"{topic}/ch subscribed") == at
    assert fields(f"{topic}/ch backs off") == where
    assert fields(f"{topic}/ch stopped") == where
    name = f"{__name__}.test_lines_carry_their_fields.<locals>.fail"
    failed = fields(f"{topic}/ch: handler {name} failed on message")
    assert failed.pop("attempts") == 1
    assert len(str(failed.pop("message_id"))) == 16
    assert failed == at
    gave_up = fields(f"{topic}/ch, handler {name}: gave up on message")
    assert gave_up.pop("attempts") == 2
    assert len(str(gave_up.pop("message_id"))) == 16
    assert gave_up == at
    assert fields(f"connected to {address(nsqd)}") == {"nsqd": address(nsqd)}
