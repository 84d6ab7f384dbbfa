"""Which threads there are while a Reader and a Writer run, and that none is left."""

from __future__ import annotations

import threading

from tests.integration.conftest import Client
from tests.support.servers import Server
from tests.support.worlds import World


def test_every_thread_has_a_name_and_ends(nsqd: Server, topic: str) -> None:
    world = World("threads")
    client = Client(world)
    before = set(threading.enumerate())
    writer = client.writer(nsqd)
    writer.publish(topic, b"x")
    reader = client.consume(topic, lambda m: None, nsqd, concurrency=2)
    world.eventually(lambda: reader.stats().finished == 1)
    names = {t.name.split(" ")[0] for t in set(threading.enumerate()) - before}
    assert names == {"nsq-read", "nsq-work", "nsq-timer", "nsq-reader"}
    reader.stop()
    reader.join()
    writer.close()
    assert set(threading.enumerate()) - before == set()
