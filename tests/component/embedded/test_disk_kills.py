"""The embedded nsqd is killed under load, again and again: what waits on its disk is not lost."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import closing

import pytest

from tests.conformance.rows import create_channel
from tests.support.rawclient import Client, Closed, channel_stats
from tests.support.servers import Server, Site

KILLS = 20
PUBLISHERS = 4
READY = 5


class Load:
    """Publishers and a consumer of one life of the server, which ends under them."""

    def __init__(self, server: Server, life: int) -> None:
        self.acknowledged: list[bytes] = []
        self.received: list[bytes] = []
        self.enough = threading.Event()
        self._clients = [Client(server.tcp_address) for _ in range(PUBLISHERS + 1)]
        consumer = self._clients[-1]
        consumer.subscribe("t", "busy", READY)
        self._threads = [threading.Thread(target=self._consume, args=(consumer,))]
        for number, client in enumerate(self._clients[:-1]):
            beginning = b"%d.%d." % (life, number)
            self._threads.append(threading.Thread(target=self._publish, args=(client, beginning)))
        for thread in self._threads:
            thread.start()

    def _publish(self, client: Client, beginning: bytes) -> None:
        count = 0
        try:
            while True:
                body = beginning + b"%d" % count
                client.publish("t", body)
                self.acknowledged.append(body)
                count += 1
                if len(self.acknowledged) >= 200 and self.received:
                    self.enough.set()
        except (Closed, OSError):
            return

    def _consume(self, client: Client) -> None:
        try:
            while True:
                message = client.message()
                self.received.append(message.body)
                client.fin(message)
        except (Closed, OSError):
            return

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def close(self) -> None:
        """Close the clients, also where the test has failed: the next test is another one's."""
        for client in self._clients:
            client.close()


@pytest.mark.timeout(500)  # twenty starts, and four thousand messages that are synced one by one
@pytest.mark.parametrize("server_kind", ["embedded"])
def test_nothing_that_waits_is_lost(site: Site) -> None:
    server = site.own_nsqd("-mem-queue-size=0", "-sync-every=1", "-max-bytes-per-file=4000")
    for name in ("idle", "busy"):
        create_channel(server, "t", name)
    acknowledged: list[bytes] = []
    received: list[bytes] = []
    for life in range(KILLS):
        with closing(Load(server, life)) as load:
            assert load.enough.wait(60)
            server.kill()
            load.join()
        acknowledged += load.acknowledged
        received += load.received
        server.restart()
    waiting = {name: drain(site, server, name) for name in ("idle", "busy")}
    # Without consumers all of them wait, and only a publish without an answer may be there more.
    assert set(acknowledged) <= set(waiting["idle"])
    assert len(waiting["idle"]) - len(acknowledged) <= KILLS * PUBLISHERS
    assert max(Counter(waiting["idle"]).values()) == 1
    # With a consumer only what was in flight may be gone.
    gone = set(acknowledged) - set(received) - set(waiting["busy"])
    assert len(gone) <= KILLS * READY
    assert not list(server.data_path.glob("*.bad"))
    assert troubles(server) == []


def troubles(server: Server) -> list[str]:
    """Return the errors of the log, but for a file that was read to its end just before a kill.

    The queue removes such a file, and then writes where it reads. A kill may come between.
    """
    gone = "no such file or directory"
    errors = [line for line in server.log.splitlines() if "ERROR" in line]
    return [line for line in errors if not ("reading at" in line and line.endswith(gone))]


def drain(site: Site, server: Server, channel: str) -> list[bytes]:
    depth = channel_stats(server.http_address, "t", channel)["depth"]
    client = site.client(server)
    client.subscribe("t", channel, 1000)
    found = []
    for _ in range(depth):
        message = client.message()
        found.append(message.body)
        client.fin(message)
    client.silent(0.3)
    return found
