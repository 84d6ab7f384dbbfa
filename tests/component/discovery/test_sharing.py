"""Readers and Writers of one process that ask one nsqlookupd the same, on threads and greenlets."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import requests

from gnsqsync import Observer, Reader, TopicGroup, Writer
from gnsqsync.discovery import shared_poll
from tests.component.conftest import Client
from tests.component.discovery.test_lies import (
    OFTEN,
    UNKNOWN,
    Discovering,
    TimeOver,
    discover,
    listing,
    lookupd,
    make_lookupd,
    nsqd,
)
from tests.support.scripted import ScriptedNsqd
from tests.support.serving import FakeServer
from tests.support.worlds import World

__all__ = ["discover", "lookupd", "make_lookupd", "nsqd"]


def polls() -> list[Any]:
    """The polls of this process, which ask."""
    return list(shared_poll._polls.values())


def tasks(*readers: Reader) -> set[Any]:
    return {task for reader in readers for task in reader._run._discovery.tasks}  # type: ignore[union-attr]


def stop(*readers: Reader) -> None:
    for reader in readers:
        reader.stop()
        reader.join()


def test_the_thread_lives_as_long_as_somebody_asks(
    discover: Discovering, world: World, lookupd: FakeServer, nsqd: ScriptedNsqd
) -> None:
    lookupd.answer(listing(nsqd))
    readers = [discover(lookupd) for _ in range(3)]
    world.eventually(lambda: all(reader.stats().connections for reader in readers))
    (task,) = tasks(*readers)
    stop(*readers[:2])
    discover.rounds(lookupd)
    assert task.alive
    stop(readers[2])
    assert not task.alive
    assert not polls()


def test_a_reader_that_comes_after_an_end_asks_anew(
    discover: Discovering, world: World, lookupd: FakeServer, nsqd: ScriptedNsqd
) -> None:
    lookupd.answer(listing(nsqd))
    for _ in range(3):
        reader = discover(lookupd, lookupd_poll_interval=3600)
        world.eventually(lambda reader=reader: reader.stats().connections)  # type: ignore[misc]
        stop(reader)
    assert len(lookupd.requests) == 3


@pytest.mark.parametrize(
    "difference",
    [
        {"topic": "other"},
        {"lookupd_authorization": "token"},
        {"lookupd_session": requests.Session},
        {"tls_verify": False},
    ],
    ids=str,
)
def test_lookups_with_other_options_are_not_shared(
    client: Client, discover: Discovering, lookupd: FakeServer, difference: dict[str, Any]
) -> None:
    options = {"topic": "t", "channel": "ch", **difference}
    other = Reader(
        options.pop("topic"),
        options.pop("channel"),
        print,
        lookupd_http_addresses=lookupd.address,
        runtime=client.world.runtime,
        **options,
    )
    same = discover(lookupd)
    other.start(block=False)
    assert len(tasks(same, other)) == 2
    stop(same, other)
    assert not polls()


def test_the_shortest_interval_counts(
    discover: Discovering, world: World, lookupd: FakeServer, nsqd: ScriptedNsqd
) -> None:
    lookupd.answer(listing(nsqd))
    seldom = discover(lookupd, lookupd_poll_interval=3600)
    world.eventually(lambda: seldom.stats().connections)
    often = discover(lookupd, lookupd_poll_interval=OFTEN)
    assert len(tasks(seldom, often)) == 1
    discover.rounds(lookupd)
    stop(often)
    asked = len(lookupd.requests)
    world.sleep(5 * OFTEN)
    assert len(lookupd.requests) <= asked + 1


def test_a_hook_that_ends_the_thread_hides_nothing_from_the_others(
    discover: Discovering, world: World, lookupd: FakeServer, nsqd: ScriptedNsqd
) -> None:
    told: list[str] = []

    class Impatient(Observer):
        def lookup_failed(self, url: str, reason: Exception) -> None:
            raise TimeOver

        lookup_recovered = lookup_failed  # type: ignore[assignment]

    class Noting(Observer):
        def lookup_failed(self, url: str, reason: Exception) -> None:
            told.append("failed")

        def lookup_recovered(self, url: str) -> None:
            told.append("recovered")

    lookupd.answer(b"<html>", 500)
    first = discover(lookupd, observer=Impatient())
    discover.rounds(lookupd, 1)
    # A Reader that came later is told, too.
    second = discover(lookupd, observer=Noting())
    world.eventually(lambda: told == ["failed"])
    lookupd.answer(listing(nsqd))
    world.eventually(lambda: first.stats().connections and second.stats().connections)
    world.eventually(lambda: told == ["failed", "recovered"])
    discover.rounds(lookupd)


def test_a_writer_that_is_forgotten_leaves_the_others_alone(
    client: Client, world: World, lookupd: FakeServer, nsqd: ScriptedNsqd
) -> None:
    lookupd.answer({"producers": [{**listing(nsqd)["producers"][0], "topics": []}]})
    options = {
        "lookupd_http_addresses": lookupd.address,
        "lookupd_poll_interval": OFTEN,
        "runtime": world.runtime,
    }
    kept = client.keep(Writer(**options))
    kept.connect()
    forgotten = Writer(**options)
    forgotten.connect()
    (poll,) = polls()
    assert len(poll.askers) == 2
    del forgotten
    gc.collect()
    world.eventually(lambda: len(poll.askers) == 1)
    asked = len(lookupd.requests)
    world.eventually(lambda: len(lookupd.requests) >= asked + 3)
    assert not kept._publisher().pool._discovery.failures


def test_a_question_that_was_cut_by_the_collector_is_asked_for_a_newcomer(
    client: Client, world: World, lookupd: FakeServer, nsqd: ScriptedNsqd
) -> None:
    """The last Writer is forgotten at the moment when another one joins its poll."""
    lookupd.answer({"producers": [{**listing(nsqd)["producers"][0], "topics": []}]})
    options = {"lookupd_http_addresses": lookupd.address, "runtime": world.runtime}
    first = client.keep(Writer(**options))
    first.connect()
    (poll,) = polls()
    second = client.keep(Writer(**options))
    poll._cut()
    second.connect()
    assert len(second.stats().connections) == 1


def test_a_topic_that_matches_is_found_soon(
    world: World, lookupd: FakeServer, nsqd: ScriptedNsqd
) -> None:
    """Topics that do not match count as nothing."""
    made: list[str] = []

    def make(topic: str) -> Reader:
        made.append(topic)
        return Reader(
            topic,
            "ch",
            print,
            nsqd_tcp_addresses=[],
            lookupd_http_addresses=lookupd.address,
            runtime=world.runtime,
        )

    lookupd.answer({"topics": ["other"]})
    group = TopicGroup("^shop", make, lookupd_http_addresses=lookupd.address, runtime=world.runtime)
    group.start(block=False)
    world.eventually(lambda: len(lookupd.requests) >= 3, 3.0)
    assert not made
    lookupd.answer({"topics": ["other", "shop.orders"], **listing(nsqd)})
    world.eventually(lambda: made == ["shop.orders"], 4.0)
    group.stop()
    group.join()
    assert not polls()


def test_an_unknown_topic_is_asked_for_eagerly(
    discover: Discovering, world: World, lookupd: FakeServer, nsqd: ScriptedNsqd
) -> None:
    lookupd.answer(UNKNOWN, 404)
    discover(lookupd, lookupd_poll_interval=3600)
    discover.rounds(lookupd, 3)
    lookupd.answer(listing(nsqd))
    world.eventually(lambda: nsqd.received("SUB"), 4.0)
