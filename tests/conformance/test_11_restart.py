"""Rows 150 to 155: what survives a stop and a crash."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.rows import create_channel, waiting
from tests.support.rawclient import channel_stats, post, stats, topic_stats
from tests.support.servers import Server, Site


def post_ok(server: Server, target: str) -> None:
    assert post(server.http_address, target).status == 200


def channel(server: Server, name: str = "c") -> Any:
    return channel_stats(server.http_address, "t", name)


def last_words(server: Server) -> str:
    """The text of the FATAL line at the end of the log; its prefix is never --log-prefix."""
    line = server.log.splitlines()[-1]
    assert line.startswith("[nsqd] ")
    return line.partition(" FATAL: ")[2]


def test_150_clean_restart(site: Site) -> None:
    server = site.own_nsqd()
    create_channel(server, "t", "c")
    create_channel(server, "t", "paused")
    post_ok(server, "/channel/pause?topic=t&channel=paused")
    producer = site.client(server)
    producer.publish("waiting", b"w1", b"w2")
    producer.publish("t", b"m1", b"m2", b"m3")
    producer.command("DPUB t 600000", b"later")
    producer.ok()
    client = site.client(server)
    client.subscribe("t", "c", 1)
    taken = client.message()
    site.eventually(lambda: channel(server)["deferred_count"] == 1)
    site.eventually(lambda: channel(server)["depth"] == 2)

    assert server.stop() == 0
    server.restart()

    assert topic_stats(server.http_address, "waiting")["depth"] == 2
    assert topic_stats(server.http_address, "waiting")["message_count"] == 0
    found = channel(server)
    assert (found["depth"], found["in_flight_count"], found["deferred_count"]) == (4, 0, 0)
    assert (found["message_count"], found["paused"]) == (0, False)
    assert (channel(server, "paused")["paused"], channel(server, "paused")["depth"]) == (True, 4)
    client = site.client(server)
    client.subscribe("t", "c", 10)
    messages = client.messages(4)
    # What waited, then what was in flight, then what was deferred.
    assert [message.body for message in messages] == [b"m2", b"m3", b"m1", b"later"]
    assert messages[2] == taken._replace(attempts=2)
    assert [message.attempts for message in messages] == [1, 1, 2, 1]
    client = site.client(server)
    client.subscribe("waiting", "c", 10)
    assert sorted(message.body for message in client.messages(2)) == [b"w1", b"w2"]


def test_151_ephemeral(site: Site) -> None:
    server = site.own_nsqd()
    producer = site.client(server)
    producer.publish("e#ephemeral", b"x")
    producer.publish("t", b"x")
    for name in ("c", "e#ephemeral"):
        create_channel(server, "t", name)
    server.restart()
    (topic,) = stats(server.http_address)["topics"]
    assert topic["topic_name"] == "t"
    assert [entry["channel_name"] for entry in topic["channels"]] == ["c"]


def test_152_killed(site: Site) -> None:
    server = site.own_nsqd()
    create_channel(server, "t", "c")
    site.client(server).publish("t", b"x", b"y")
    # A pause writes nsqd.dat at once (docs/protocol/end#files).
    post_ok(server, "/channel/pause?topic=t&channel=c")
    server.kill()
    server.restart()
    found = channel(server)
    if site.kind == "real" or found is not None:
        assert (found["paused"], found["depth"]) == (True, 0)
    site.client(server).publish("t", b"z")


def waiting_on_disk(server: Server, queue: str) -> int | None:
    """The depth that the meta file of a queue has; None where there is no file."""
    path = server.data_path / f"{queue}.diskqueue.meta.dat"
    return int(path.read_text().splitlines()[0]) if path.exists() else None


@waiting
def test_153_killed_without_memory_queue(site: Site) -> None:
    server = site.own_nsqd("-mem-queue-size=0")
    create_channel(server, "t", "c")
    client = site.client(server)
    client.subscribe("t", "c", 1)
    producer = site.client(server)
    producer.publish("t", b"m1", b"m2", b"m3")
    taken = client.message()
    producer.command("DPUB t 600000", b"later")
    producer.ok()
    site.eventually(lambda: channel(server)["message_count"] == 4)
    # The positions of the queues are written every 2 s. The embedded nsqd's topic, which has a
    # channel, keeps nothing.
    of_topic = 0 if site.kind == "real" else None
    site.eventually(
        lambda: [waiting_on_disk(server, queue) for queue in ("t", "t:c")] == [of_topic, 2]
    )
    server.kill()
    server.restart()
    client = site.client(server)
    client.subscribe("t", "c", 10)
    bodies = sorted(message.body for message in client.drain(1.0))
    assert bodies == [body for body in (b"m1", b"m2", b"m3") if body != taken.body]


def test_154_no_data_path(site: Site) -> None:
    server = site.own_nsqd()
    server.stop()
    server.data_path.rename(server.folder / "elsewhere")
    assert server.run_to_the_end() == 1
    path = server.data_path
    assert last_words(server) == (
        "failed to instantiate nsqd - failed to lock data-path:"
        f" open {path}: no such file or directory"
    )


def test_155_clean_stop(site: Site) -> None:
    server = site.own_nsqd()
    client = site.client(server)
    client.subscribe("t", "c", 1)
    assert server.stop() == 0
    client.closed()


def test_one_data_path_for_two(site: Site) -> None:
    first = site.own_nsqd()
    second = Server(site.kind, "nsqd", [f"-data-path={first.data_path}", "-log-prefix=x"])
    try:
        assert second.run_to_the_end() == 1
        assert last_words(second) == (
            "failed to instantiate nsqd - failed to lock data-path: cannot flock directory"
            f" {first.data_path} - resource temporarily unavailable"
            " (possibly in use by another instance of nsqd)"
        )
        assert "listening on" not in second.log
    finally:
        second.discard()
    assert first.stop() == 0


def test_a_broken_nsqd_dat(site: Site) -> None:
    server = site.own_nsqd()
    server.stop()
    path = server.data_path / "nsqd.dat"
    for content in ("", "x", "[]", '{"topics":{}}', '{"topics":[{"name":5}]}'):
        path.write_text(content)
        assert server.run_to_the_end() == 1, content
        text = f"failed to load metadata - failed to parse metadata in {path} - "
        assert last_words(server).startswith(text), content
        assert path.read_text() == content
    path.unlink()
    path.mkdir()
    assert server.run_to_the_end() == 1
    assert last_words(server) == (
        f"failed to load metadata - failed to read metadata from {path}"
        f" - read {path}: is a directory"
    )
    path.rmdir()
    for content in ("null", "{}", '{"topics":[null]}'):
        path.write_text(content)
        server.start()
        # The real one says that it listens just before it takes signals, and answers later.
        assert stats(server.http_address)["topics"] == []
        assert server.stop() == 0


def test_a_data_path_that_cannot_be_written(site: Site) -> None:
    server = site.own_nsqd()
    server.stop()
    # A folder that takes no files, whoever asks.
    server.flags.append("-data-path=/proc/self")
    assert server.run_to_the_end() == 1
    found = last_words(server)
    assert found.startswith("failed to persist metadata - open /proc/self/nsqd.dat")
    assert found.endswith(": no such file or directory")


@pytest.mark.parametrize("label", ["tcp", "http"])
def test_a_port_that_is_taken_leaves_no_file(server_kind: str, label: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = Server(server_kind, "nsqd", [f"-{label}-address=127.0.0.1:{port}"])
        try:
            assert server.run_to_the_end() == 1
            assert f"listen (127.0.0.1:{port}) failed" in last_words(server)
            assert list(server.data_path.iterdir()) == []
        finally:
            server.discard()


class _UnderUmask(Server):
    """An nsqd whose umask is the first word of its flags."""

    def command(self) -> list[str]:
        program, *flags = super().command()
        umask = flags.pop(flags.index(self.flags[0]))
        return ["/bin/sh", "-c", f'umask {umask}; exec "$@"', "sh", program, *flags]


@pytest.fixture(params=["022", "000"])
def under_umask(request: pytest.FixtureRequest, server_kind: str) -> Iterator[Server]:
    server = _UnderUmask(server_kind, "nsqd", [request.param, "-max-bytes-per-file=1024"])
    yield server
    server.discard()


def test_only_the_owner_may_read_the_files(under_umask: Server) -> None:
    server = under_umask.start()
    create_channel(server, "t", "c")
    for _ in range(3):
        assert post(server.http_address, "/pub?topic=t", b"x" * 1000).status == 200
    post_ok(server, "/topic/create?topic=waiting")
    assert post(server.http_address, "/pub?topic=waiting", b"x").status == 200
    assert server.stop() == 0
    modes = {path.name: path.stat().st_mode & 0o777 for path in server.data_path.iterdir()}
    assert {"nsqd.dat", "t:c.diskqueue.meta.dat", "t:c.diskqueue.000000.dat"} < modes.keys()
    assert set(modes.values()) == {0o600}, modes
