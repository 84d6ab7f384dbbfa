"""Handlers that publish when their ``time_limit`` comes: nothing is lost, no lock stays taken."""

from __future__ import annotations

import gc
import logging
import random

import pytest

from gnsqsync import Message, TimeLimitInterrupt
from gnsqsync.errors import NSQError
from tests.integration.conftest import Client
from tests.support.marks import few_and_many
from tests.support.servers import Server
from tests.support.worlds import World

WORKERS = 4


@few_and_many(100, 300)
# A dial that is struck between two instructions leaves its socket to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_limits_that_come_in_the_middle_of_publishes(
    client: Client,
    world: World,
    nsqd: Server,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
    count: int,
) -> None:
    # Or the tracebacks keep those sockets until after the test.
    caplog.set_level(logging.CRITICAL, "gnsqsync")
    # What strikes in a finalizer Python prints and drops.
    gc.disable()
    request.addfinalizer(gc.enable)
    chance = random.Random(1)
    writer = client.writer(nsqd)
    accepted: set[bytes] = set()
    handled: set[bytes] = set()
    received: set[bytes] = set()
    struck = [0]

    def publishes(message: Message) -> None:
        try:
            # Up to twice the limit, while it may be interrupted; at last with time enough.
            for number in range(chance.randrange(200) if message.attempts < 4 else 1):
                body = b"%s %d %d" % (message.body, message.attempts, number)
                try:
                    writer.publish(f"{topic}.out", body)
                except NSQError:
                    continue  # its connection ended in the middle of a struck command
                accepted.add(body)
            handled.add(message.body)
        except TimeLimitInterrupt:
            struck[0] += 1
            raise

    bodies = [b"%d" % number for number in range(count)]
    writer.publish_many(topic, bodies)
    reader = client.consume(
        topic,
        publishes,
        nsqd,
        concurrency=WORKERS,
        time_limit=0.02,
        max_attempts=0,
        requeue_delay=0,
        max_backoff_duration=0,
    )
    out = client.consume(f"{topic}.out", lambda message: received.add(message.body), nsqd)
    world.eventually(
        lambda: len(handled) == count and not accepted - received,
        describe=lambda: f"{len(handled)} handled, {len(accepted - received)} not received",
    )
    assert struck[0] > 20
    assert reader._running().workers.working == WORKERS
    writer.publish(f"{topic}.out", b"last")
    world.eventually(lambda: b"last" in received)
    for one in (reader, out):
        one.stop()
        result = one.join(60)
        assert result is not None
        assert result.clean
    writer.close()
    gc.collect()
