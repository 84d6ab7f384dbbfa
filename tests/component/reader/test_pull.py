"""The pull form: how lists are cut, when they end, and one call that finishes them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gnsqsync import Message, Reader
from gnsqsync.errors import ClosedError, ConfigError, MessageAnswered
from tests.component.conftest import Client
from tests.support.scripted import ScriptedNsqd, automatic, message_frame, send
from tests.support.worlds import World


def burst(*bodies: bytes, attempts: int = 1) -> bytes:
    """Messages that arrive at once."""
    return b"".join(
        message_frame(body, id=b"%016d" % n, attempts=attempts) for n, body in enumerate(bodies)
    )


def test_one_burst_is_cut_into_lists(client: Client, world: World) -> None:
    bodies = [b"%d" % n for n in range(10)]
    script = [automatic(until="RDY"), send(burst(*bodies)), automatic()]
    with ScriptedNsqd(script) as nsqd, client.reader(None, nsqd, max_in_flight=10) as reader:
        # The first one waits for the burst, which is counted just before it can be taken.
        lists = [next(reader.batches(4, max_wait)) for max_wait in (15.0, 0.0, 0.0, 0.0)]
        assert [len(batch) for batch in lists] == [4, 4, 2, 0]
        assert [message.body for batch in lists for message in batch] == bodies
        assert reader.finish(message for batch in lists for message in batch) == 10
        world.eventually(lambda: len(nsqd.received("FIN")) == 10)


def test_a_list_that_has_begun_ends_when_no_more_comes(client: Client, world: World) -> None:
    script = [automatic(until="RDY"), send(burst(b"a", b"b")), automatic()]
    with ScriptedNsqd(script) as nsqd, client.reader(None, nsqd, max_in_flight=10) as reader:
        world.eventually(lambda: reader.stats().received == 2)
        # An hour for the first one, and none for the third.
        batch = next(reader.batches(10, 3600.0, 0.0))
        assert [message.body for message in batch] == [b"a", b"b"]
        # Without a first one it is max_wait that ends the list.
        assert next(reader.batches(10, 0.01, 3600.0)) == []
        reader.finish(batch)


@pytest.mark.parametrize("max_idle", [-1.0, math.nan, "1"])
def test_max_idle_is_seconds(client: Client, max_idle: float) -> None:
    with ScriptedNsqd() as nsqd:
        reader = client.reader(None, nsqd, max_in_flight=10)
        with pytest.raises(ConfigError, match="max_idle"):
            reader.batches(10, 1.0, max_idle)


def test_max_deliveries_holds_for_a_whole_burst(client: Client, world: World) -> None:
    bodies = burst(b"a", b"b", attempts=6)
    script = [automatic(until="RDY"), send(bodies), automatic()]
    options: dict[str, Any] = {"max_deliveries": 5, "on_giving_up": "discard"}
    with (
        ScriptedNsqd(script) as nsqd,
        client.reader(None, nsqd, max_in_flight=10, **options) as reader,
    ):
        lists: list[list[Message]] = []

        def finished() -> bool:
            lists.append(next(reader.batches(10, 0.01)))
            return len(nsqd.received("FIN")) == 2

        world.eventually(finished)
        assert not any(lists)
        assert reader.stats().gave_up == 2


def test_a_message_that_came_often_is_in_the_list_all_the_same(
    client: Client, world: World
) -> None:
    bodies = burst(b"a", b"b", attempts=65535)
    script = [automatic(until="RDY"), send(bodies), automatic()]
    with (
        ScriptedNsqd(script) as nsqd,
        client.reader(None, nsqd, max_in_flight=10, dead_letter_topic="dead") as reader,
    ):
        batch = next(reader.batches(2, 15.0))
        assert [message.body for message in batch] == [b"a", b"b"]
        reader.finish(batch)
        assert reader.stats().gave_up == 0
        assert nsqd.received("PUB") == []


def test_a_requeue_of_the_last_attempt_gives_up_with_what_was_caught(
    client: Client, world: World
) -> None:
    given_up: list[tuple[bytes, BaseException | None]] = []
    bodies = burst(b"caught", b"called", b"not now", attempts=5)
    script = [automatic(until="RDY"), send(bodies), automatic()]
    with (
        ScriptedNsqd(script) as nsqd,
        client.reader(
            None,
            nsqd,
            max_in_flight=10,
            on_giving_up=lambda message, error: given_up.append((message.body, error)),
            dead_letter_topic="dead",
            requeue_delay=1,
            backoff="every_failure",
        ) as reader,
    ):
        caught, called, not_now = next(reader.batches(3, 15.0))
        broken = ValueError("broken")
        try:
            raise broken
        except ValueError:
            assert caught.requeue(60)
        # It has been published, and answered.
        assert [(c.parameters, c.body) for c in nsqd.received("PUB")] == [(("dead",), b"caught")]
        assert caught.is_answered
        with pytest.raises(MessageAnswered):
            caught.requeue()
        assert called.requeue()
        assert not_now.requeue(backoff=False)
        world.eventually(lambda: len(nsqd.received("FIN")) == 2)
        world.eventually(lambda: len(nsqd.received("REQ")) == 1)
        assert given_up == [(b"caught", broken), (b"called", None)]
        assert nsqd.received("REQ")[0].parameters[1] == "5000"
        assert reader.stats().gave_up == 2
        assert reader.is_in_backoff


def test_a_requeue_of_the_last_attempt_with_nowhere_to_go_waits_in_nsqd(
    client: Client, world: World
) -> None:
    script = [automatic(until="RDY"), send(burst(b"x", attempts=7)), automatic()]
    with ScriptedNsqd(script) as nsqd, client.reader(None, nsqd, max_in_flight=10) as reader:
        (message,) = next(reader.batches(1, 15.0))
        assert message.requeue(1)
        world.eventually(lambda: nsqd.received("REQ"))
        assert nsqd.received("REQ")[0].parameters[1] == "900000"
        assert not reader.is_in_backoff
        assert reader.stats().gave_up == 0


def test_messages_beyond_the_size_of_a_list_go_back_at_a_stop(client: Client, world: World) -> None:
    script = [automatic(until="RDY"), send(burst(b"a", b"b", b"c")), automatic()]
    with ScriptedNsqd(script) as nsqd, client.reader(None, nsqd, max_in_flight=10) as reader:
        world.eventually(lambda: reader.stats().received == 3)
        batch = next(reader.batches(1, 1.0))
        reader.stop()
        world.eventually(lambda: len(nsqd.received("REQ")) == 2)
        assert reader.finish(batch) == 1
        result = reader.join()
        assert result is not None
        assert result.clean


# -- finish ---------------------------------------------------------------------------------------


def take(reader: Reader, world: World, count: int) -> list[Message]:
    """So many messages; the reader must be able to hold them all."""
    taken: list[Message] = []

    def enough() -> bool:
        taken.extend(next(reader.batches(count - len(taken), 0.1)))
        return len(taken) == count

    world.eventually(enough)
    return taken


def test_finish_counts_what_was_ours_to_finish(client: Client, world: World) -> None:
    script = [automatic(until="RDY"), send(burst(b"a", b"b", b"c")), automatic()]
    with ScriptedNsqd(script) as nsqd, client.reader(None, nsqd, max_in_flight=10) as reader:
        first, second, third = take(reader, world, 3)
        assert first.finish()
        assert second.requeue(0, backoff=False)
        assert reader.finish([first, second, third]) == 1
        assert third.is_answered
        assert reader.finish([third]) == 0
        assert reader.finish([]) == 0
        world.eventually(lambda: len(nsqd.received("FIN")) == 2)
        with pytest.raises(MessageAnswered):
            third.finish()


def test_finish_reaches_each_nsqd_in_one_write(client: Client, world: World) -> None:
    scripts = [[automatic(until="RDY"), send(burst(b"a", b"b")), automatic()]]
    with ScriptedNsqd(*scripts) as one, ScriptedNsqd(*scripts) as two:
        with client.reader(None, one, two, max_in_flight=10) as reader:
            taken = take(reader, world, 4)
            assert reader.finish(taken) == 4
            for nsqd in (one, two):
                world.eventually(lambda nsqd=nsqd: len(nsqd.received("FIN")) == 2)
            assert reader.stats().in_flight == 0


def test_finish_of_what_was_lost_with_its_connection(client: Client, world: World) -> None:
    script = [automatic(until="RDY"), send(burst(b"a", b"b")), automatic()]
    with ScriptedNsqd(script, [automatic()]) as nsqd:
        with client.reader(None, nsqd, max_in_flight=10) as reader:
            taken = take(reader, world, 2)
            nsqd.drop_connections()
            world.eventually(lambda: not any(message.is_alive for message in taken))
            assert reader.finish(taken) == 0


def test_finish_tells_the_backoff_of_success(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd:
        options = {"max_in_flight": 2, "backoff_multiplier": 0.001, "backoff": "every_failure"}
        with client.reader(None, nsqd, **options) as reader:
            world.eventually(lambda: nsqd.received("RDY"))
            nsqd.connections[0].message(b"a")
            (message,) = take(reader, world, 1)
            message.requeue(0)
            assert reader.is_in_backoff
            # The pause is over, and one message is let through to see how it goes. On a busy
            # machine that is so before RDY 0 was sent, and nsqd gets RDY 1 only.
            world.eventually(
                lambda: (
                    len(nsqd.received("RDY")) > 1 and nsqd.received("RDY")[-1].parameters == ("1",)
                )
            )
            nsqd.connections[0].message(b"a", attempts=2)
            assert reader.finish(take(reader, world, 1)) == 1
            world.eventually(lambda: not reader.is_in_backoff)


def test_finish_needs_a_reader_that_was_started(client: Client) -> None:
    with ScriptedNsqd() as nsqd:
        with pytest.raises(ClosedError):
            client.reader(None, nsqd).finish([])


def test_a_list_larger_than_max_in_flight_is_told_of_a_started_reader(client: Client) -> None:
    with ScriptedNsqd() as nsqd, client.reader(None, nsqd, max_in_flight=10) as reader:
        with pytest.raises(ConfigError, match="max_messages is 11, but max_in_flight is 10"):
            reader.batches(11, 1.0)
        # Lowered for a while, and raised.
        reader.set_max_in_flight(5)
        reader.batches(10, 1.0)
        reader.set_max_in_flight(20)
        reader.batches(20, 1.0)
