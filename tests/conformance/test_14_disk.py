"""The disk queue: what is in the files, what survives, what is said when the disk fails.

Where the embedded nsqd keeps what the real one loses, a test says what each of them does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.rows import create_channel, waiting
from tests.support.rawclient import Message, channel_stats, get, mpub_body, post, stats, topic_stats
from tests.support.servers import Server, Site

MEM0 = "-mem-queue-size=0"
# Synced by count only, so that no test depends on when the timer ticks.
EACH = ("-mem-queue-size=0", "-sync-every=1")


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%06d" % number for number in range(start, start + count)]


def pub(site: Site, server: Server, *bodies: bytes, topic: str = "t") -> None:
    client = site.client(server)
    client.publish(topic, *bodies)
    client.close()


def depth(server: Server) -> tuple[int, int]:
    found = topic_stats(server.http_address, "t")
    return found["depth"], found["backend_depth"]


def channel_depth(server: Server, name: str = "c") -> int:
    return int(channel_stats(server.http_address, "t", name)["depth"])


def sizes(server: Server, queue: str = "t") -> dict[str, int]:
    """The data files of a queue by number, and those set aside."""
    beginning = f"{queue}.diskqueue."
    return {
        path.name.removeprefix(beginning): path.stat().st_size
        for path in sorted(server.data_path.iterdir())
        if path.name.startswith(beginning) and "meta" not in path.name
    }


def meta_path(server: Server, queue: str = "t") -> Path:
    return server.data_path / f"{queue}.diskqueue.meta.dat"


def meta(server: Server, queue: str = "t") -> str | None:
    path = meta_path(server, queue)
    return path.read_text() if path.exists() else None


def synced(site: Site, server: Server, text: str, queue: str = "t") -> None:
    """Until the meta file says so. The real nsqd syncs after its answer."""
    site.eventually(lambda: meta(server, queue) == text, describe=lambda: repr(meta(server, queue)))


def knows_the_topic(site: Site, server: Server) -> None:
    """Wait until nsqd.dat has the topic t: nsqd writes the file beside the first publish."""
    site.eventually(lambda: b'"t"' in (server.data_path / "nsqd.dat").read_bytes())


def consume(site: Site, server: Server, count: int, channel: str = "c") -> list[Message]:
    """So many messages, and no more; they are finished."""
    client = site.client(server)
    client.subscribe("t", channel, 100)
    found = client.messages(count)
    client.fin(*found)
    client.silent(0.3)
    client.close()
    return found


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


# -- what is in the files --------------------------------------------------------------------------


def test_names_of_topics_before_any_message(site: Site) -> None:
    server = site.own_nsqd(MEM0)
    path = server.data_path / "nsqd.dat"
    site.eventually(lambda: path.exists())
    assert post(server.http_address, "/topic/create?topic=t").status == 200
    site.eventually(lambda: b'"t"' in path.read_bytes())
    assert b'"name":"t","paused":false,"channels":' in path.read_bytes()
    assert [entry.name for entry in server.data_path.iterdir()] == ["nsqd.dat"]


def test_the_first_message(site: Site) -> None:
    server = site.own_nsqd(MEM0)
    pub(site, server, b"m00000")
    path = server.data_path / "t.diskqueue.000000.dat"
    data = path.read_bytes()
    assert (len(data), data[:4], data[12:14], data[30:]) == (36, b"\0\0\0\x20", b"\0\0", b"m00000")
    assert path.stat().st_mode & 0o777 == 0o600
    int(data[14:30], 16)


@waiting
def test_sync_by_time(site: Site) -> None:
    server = site.own_nsqd(MEM0)
    pub(site, server, *numbers(1))
    synced(site, server, "1\n0,0\n0,36\n")
    pub(site, server, *numbers(2, 1))
    assert (depth(server), meta(server)) in (
        ((3, 3), "1\n0,0\n0,36\n"),
        ((3, 3), "3\n0,0\n0,108\n"),
    )
    synced(site, server, "3\n0,0\n0,108\n")


def test_sync_by_count(site: Site) -> None:
    server = site.own_nsqd(MEM0, "-sync-every=5", "-sync-timeout=1h")
    pub(site, server, *numbers(4))
    assert meta(server) is None
    pub(site, server, *numbers(1, 4))
    synced(site, server, "5\n0,0\n0,180\n")
    pub(site, server, *numbers(4, 5))
    assert meta(server) == "5\n0,0\n0,180\n"
    pub(site, server, *numbers(1, 9))
    synced(site, server, "10\n0,0\n0,360\n")


@pytest.mark.parametrize(
    ("limit", "found", "text"),
    [
        (100, [72, 72, 72, 36], "6\n0,0\n3,0\n"),
        (108, [108, 108, 36], "6\n0,0\n2,0\n"),
        (50, [36] * 7, "6\n0,0\n6,0\n"),
        (0, [36] * 7, "6\n0,0\n6,0\n"),
        (-5, [36] * 7, "6\n0,0\n6,0\n"),
    ],
)
def test_rolling(site: Site, limit: int, found: list[int], text: str) -> None:
    server = site.own_nsqd(MEM0, f"-max-bytes-per-file={limit}", "-sync-timeout=1h")
    pub(site, server, *numbers(7))
    assert sizes(server) == {f"{number:06d}.dat": size for number, size in enumerate(found)}
    assert meta(server) == text


def test_another_limit_after_a_restart(site: Site) -> None:
    server = site.own_nsqd(MEM0, "-max-bytes-per-file=100")
    pub(site, server, *numbers(7))
    for limit, more in ((100000, 3), (50, 2)):
        server.stop()
        server.flags[1] = f"-max-bytes-per-file={limit}"
        server.start()
        count = depth(server)[0]
        pub(site, server, *numbers(more, count))
    assert sizes(server)["000003.dat"] == 4 * 36
    create_channel(server, "t", "c")
    assert bodies(consume(site, server, 12)) == numbers(12)


def test_a_file_that_is_read_is_removed(site: Site) -> None:
    server = site.own_nsqd(MEM0, "-max-bytes-per-file=100")
    create_channel(server, "t", "c")
    pub(site, server, *numbers(7))
    site.eventually(lambda: channel_depth(server) == 7)
    client = site.client(server)
    client.subscribe("t", "c", 4)
    client.messages(4)
    synced(site, server, "3\n2,0\n3,36\n", "t:c")
    assert sizes(server, "t:c").keys() == {"000002.dat", "000003.dat"}


def test_a_reader_that_keeps_up(site: Site) -> None:
    server = site.own_nsqd(MEM0, "-max-bytes-per-file=100")
    create_channel(server, "t", "c")
    client = site.client(server)
    client.subscribe("t", "c", 1)
    for number in range(7):
        pub(site, server, *numbers(1, number))
        message = client.message()
        assert message.body == b"%06d" % number
        client.fin(message)
    left = sizes(server, "t:c").keys()
    # The real nsqd gives the files up that it has just read.
    bad = {"000000.dat.bad", "000001.dat.bad", "000002.dat.bad"} if site.kind == "real" else set()
    assert left == bad | {"000003.dat"}


# -- memory and disk -------------------------------------------------------------------------------


def test_overflow(site: Site) -> None:
    server = site.own_nsqd("-mem-queue-size=5")
    pub(site, server, *numbers(12))
    assert depth(server) == (12, 7)
    data = (server.data_path / "t.diskqueue.000000.dat").read_bytes()
    assert [data[end - 6 : end] for end in range(36, len(data) + 1, 36)] == numbers(7, 5)
    create_channel(server, "t", "c")
    assert sorted(bodies(consume(site, server, 12))) == numbers(12)


def test_order_after_a_clean_restart(site: Site) -> None:
    server = site.own_nsqd("-mem-queue-size=3")
    pub(site, server, *numbers(10))
    server.restart()
    assert depth(server) == (10, 10)
    assert topic_stats(server.http_address, "t")["message_count"] == 0
    server.stop()
    server.flags[:] = [MEM0]
    server.start()
    create_channel(server, "t", "c")
    assert bodies(consume(site, server, 10)) == numbers(7, 3) + numbers(3)


def test_a_clean_stop_writes_what_is_in_memory(site: Site) -> None:
    server = site.own_nsqd("-mem-queue-size=100")
    create_channel(server, "t", "c")
    producer = site.client(server)
    producer.publish("t", *numbers(6))
    producer.command("DPUB t 60000", b"000006")
    producer.ok()
    site.eventually(lambda: channel_stats(server.http_address, "t", "c")["message_count"] == 7)
    client = site.client(server)
    client.subscribe("t", "c", 2)
    taken = client.messages(2)
    server.stop()
    assert meta(server, "t:c") == "7\n0,0\n0,252\n"
    assert (meta(server), sizes(server)) == ("0\n0,0\n0,0\n", {})
    log = "CHANNEL(c): flushing 4 memory 2 in-flight 1 deferred messages to backend"
    assert log in server.log
    server.start()
    found = channel_stats(server.http_address, "t", "c")
    names = ("depth", "backend_depth", "in_flight_count", "deferred_count")
    assert [found[name] for name in names] == [7, 7, 0, 0]
    messages = consume(site, server, 7)
    again = {message.body for message in messages if message.attempts == 2}
    assert again == {message.body for message in taken}
    assert sorted(bodies(messages)) == numbers(7)


def test_a_requeued_message_is_appended(site: Site) -> None:
    server = site.own_nsqd(MEM0)
    create_channel(server, "t", "c")
    pub(site, server, *numbers(4))
    site.eventually(lambda: channel_depth(server) == 4)
    client = site.client(server)
    client.subscribe("t", "c", 1)
    found = [client.message()]
    client.command(b"REQ %s 0" % found[0].id)
    for _ in range(4):
        found.append(client.message())
        client.fin(found[-1])
    assert bodies(found[1:]) == numbers(3, 1) + numbers(1)
    assert found[-1].attempts == 2
    assert sizes(server, "t:c") == {"000000.dat": 5 * 36}


def test_ephemeral_topics_have_no_disk(site: Site) -> None:
    server = site.own_nsqd("-mem-queue-size=3")
    for body in numbers(6):
        assert post(server.http_address, "/pub?topic=e%23ephemeral", body).status == 200
    (topic,) = stats(server.http_address)["topics"]
    assert [topic[name] for name in ("depth", "backend_depth", "message_count")] == [3, 0, 6]
    assert [entry.name for entry in server.data_path.iterdir()] == ["nsqd.dat"]


def test_a_deferred_message_on_disk_is_due(site: Site) -> None:
    server = site.own_nsqd(MEM0)
    producer = site.client(server)
    producer.command("DPUB t 60000", b"000000")
    producer.ok()
    assert depth(server) == (1, 1)
    create_channel(server, "t", "c")
    assert bodies(consume(site, server, 1)) == numbers(1)


def test_a_deferred_message_is_due_after_a_clean_restart(site: Site) -> None:
    server = site.own_nsqd(MEM0)
    create_channel(server, "t", "c")
    producer = site.client(server)
    producer.command("DPUB t 60000", b"000000")
    producer.ok()

    def deferred() -> int:
        return int(channel_stats(server.http_address, "t", "c")["deferred_count"])

    site.eventually(lambda: deferred() == 1)
    assert channel_depth(server) == 0
    producer.close()
    server.stop()
    server.start()
    assert (deferred(), channel_depth(server)) == (0, 1)
    assert bodies(consume(site, server, 1)) == numbers(1)


def test_sync_by_time_only(site: Site) -> None:
    server = site.own_nsqd(MEM0, "-sync-every=0", "-sync-timeout=100ms")
    pub(site, server, *numbers(3000))
    synced(site, server, "3000\n0,0\n0,108000\n")


def test_a_sync_timeout_of_nothing(site: Site) -> None:
    """The real one ends at its first topic; ours does not start."""
    server = Server(site.kind, "nsqd", ["-sync-timeout=0"])
    try:
        if site.kind == "real":
            server.start()
            # Which may be answered before.
            site.client(server).command("PUB t", b"x")
            assert server.process is not None
            assert server.process.wait(60) == 2
        else:
            assert server.run_to_the_end() == 1
            assert "--sync-timeout must be positive" in server.log
    finally:
        server.discard()


# -- emptying and deleting -------------------------------------------------------------------------


def test_empty(site: Site) -> None:
    server = site.own_nsqd(MEM0, "-max-bytes-per-file=100", "-sync-timeout=1h")
    pub(site, server, *numbers(7))
    assert post(server.http_address, "/topic/empty?topic=t").status == 200
    assert (depth(server), sizes(server), meta(server)) == ((0, 0), {}, None)
    pub(site, server, *numbers(2))
    assert sizes(server) == {"000004.dat": 72}
    assert post(server.http_address, "/topic/empty?topic=t").status == 200
    server.kill()
    server.restart()
    assert depth(server) == (0, 0)


def test_delete(site: Site) -> None:
    server = site.own_nsqd(MEM0)
    create_channel(server, "t", "c")
    pub(site, server, *numbers(2))
    site.eventually(lambda: channel_depth(server) == 2)
    bad = server.data_path / "t.diskqueue.000000.dat.bad"
    bad.write_bytes(b"x")
    assert post(server.http_address, "/channel/delete?topic=t&channel=c").status == 200
    assert (sizes(server, "t:c"), meta(server, "t:c")) == ({}, None)
    assert post(server.http_address, "/topic/delete?topic=t").status == 200
    assert (sizes(server), meta(server)) == ({"000000.dat.bad": 1}, None)
    pub(site, server, *numbers(1))
    assert sizes(server) == {"000000.dat": 36, "000000.dat.bad": 1}


def test_files_of_a_name_that_nsqd_dat_does_not_have(site: Site) -> None:
    server = site.own_nsqd(MEM0)
    pub(site, server, *numbers(3))
    server.stop()
    (server.data_path / "nsqd.dat").unlink()
    server.start()
    assert stats(server.http_address)["topics"] == []
    pub(site, server, *numbers(1, 3))
    assert depth(server) == (4, 4)


# -- killed ----------------------------------------------------------------------------------------


def test_killed_with_sync_every_message(site: Site) -> None:
    server = site.own_nsqd(*EACH)
    pub(site, server, *numbers(20))
    synced(site, server, "20\n0,0\n0,720\n")
    server.kill()
    server.restart()
    create_channel(server, "t", "c")
    assert bodies(consume(site, server, 20)) == numbers(20)


def test_killed_before_the_first_sync(site: Site) -> None:
    server = site.own_nsqd(MEM0, "-sync-timeout=1h")
    pub(site, server, *numbers(20))
    knows_the_topic(site, server)
    server.kill()
    server.restart()
    assert depth(server) == ((0, 0) if site.kind == "real" else (20, 20))


def test_killed_with_messages_behind_the_positions(site: Site) -> None:
    server = site.own_nsqd(MEM0, "-sync-every=10", "-sync-timeout=1h")
    pub(site, server, *numbers(17))
    synced(site, server, "10\n0,0\n0,360\n")
    knows_the_topic(site, server)
    server.kill()
    server.restart()
    warning = "metadata writePos 360 < file size of 612, skipping to new file"
    assert warning in server.log
    assert depth(server)[0] == (10 if site.kind == "real" else 17)
    create_channel(server, "t", "c")
    assert bodies(consume(site, server, 17)) == numbers(17)


def test_killed_with_messages_in_flight(site: Site) -> None:
    server = site.own_nsqd(*EACH)
    create_channel(server, "t", "c")
    pub(site, server, *numbers(20))
    site.eventually(lambda: channel_depth(server) == 20)
    client = site.client(server)
    client.subscribe("t", "c", 5)
    client.messages(5)
    synced(site, server, "15\n0,180\n0,720\n", "t:c")
    server.kill()
    server.restart()
    assert bodies(consume(site, server, 15)) == numbers(15, 5)


def test_killed_with_memory(site: Site) -> None:
    server = site.own_nsqd("-mem-queue-size=10", "-sync-every=1")
    pub(site, server, *numbers(30))
    synced(site, server, "20\n0,0\n0,720\n")
    server.kill()
    server.restart()
    create_channel(server, "t", "c")
    assert sorted(bodies(consume(site, server, 20))) == numbers(20, 10)


def test_a_paused_topic_has_it_for_all_channels(site: Site) -> None:
    server = site.own_nsqd(*EACH)
    for name in ("c", "d"):
        create_channel(server, "t", name)
    assert post(server.http_address, "/topic/pause?topic=t").status == 200
    pub(site, server, *numbers(10))
    synced(site, server, "10\n0,0\n0,360\n")
    server.kill()
    server.restart()
    assert depth(server) == (10, 10)
    assert post(server.http_address, "/topic/unpause?topic=t").status == 200
    for name in ("c", "d"):
        assert bodies(consume(site, server, 10, name)) == numbers(10)


def test_the_same_ids_in_order_after_a_clean_restart(site: Site) -> None:
    server = site.own_nsqd(MEM0)
    pub(site, server, *numbers(3))
    data = (server.data_path / "t.diskqueue.000000.dat").read_bytes()
    ids = [data[14 + 36 * number : 30 + 36 * number] for number in range(3)]
    server.restart()
    assert (depth(server), topic_stats(server.http_address, "t")["message_count"]) == ((3, 3), 0)
    create_channel(server, "t", "c")
    site.eventually(lambda: (depth(server)[0], channel_depth(server)) == (0, 3))
    found = consume(site, server, 3)
    assert [(one.id, one.attempts, one.body) for one in found] == [
        (id, 1, body) for id, body in zip(ids, numbers(3), strict=True)
    ]


@pytest.mark.parametrize("sync_every", [1, 2500])
def test_killed_after_messages_were_finished(site: Site, sync_every: int) -> None:
    server = site.own_nsqd(MEM0, f"-sync-every={sync_every}", "-sync-timeout=1h")
    create_channel(server, "t", "c")
    pub(site, server, *numbers(20))
    site.eventually(lambda: channel_depth(server) == 20)
    # A clean stop syncs.
    server.restart()
    client = site.client(server)
    client.subscribe("t", "c", 5)
    found = client.messages(5)
    client.command("RDY 0")
    client.fin(*found)
    found += client.drain(0.3)
    if sync_every == 1:
        left = 20 - len(found)
        text = f"{left}\n0,{36 * len(found)}\n0,720\n"
        synced(site, server, text, "t:c")
        wanted = numbers(left, len(found))
    else:
        wanted = numbers(20)
    server.kill()
    server.restart()
    assert bodies(consume(site, server, len(wanted))) == wanted


# -- damaged ---------------------------------------------------------------------------------------


def damaged(site: Site, change: str) -> Server:
    """An nsqd whose queue of four messages was damaged while it was stopped."""
    server = site.own_nsqd(MEM0)
    pub(site, server, *numbers(4))
    server.stop()
    path = server.data_path / "t.diskqueue.000000.dat"
    data = bytearray(path.read_bytes())
    if change == "cut":
        del data[-5:]
    elif change == "garbage":
        data += b"\xff" * 10
    elif change == "zeros":
        data += bytes(100)
    elif change == "length 25":
        data[36:40] = (25).to_bytes(4)
    elif change == "huge length":
        data[36:40] = b"\x7f\0\0\0"
    elif change == "length 0":
        data[36:40] = bytes(4)
    elif change == "length + 1":
        data[39] += 1
    elif change == "body":
        data[36 + 30] ^= 1
    path.write_bytes(data)
    if change == "missing":
        path.unlink()
    elif change == "no meta":
        meta_path(server).unlink()
    elif change == "garbage in meta":
        meta_path(server).write_text("garbage")
    elif change == "empty meta":
        meta_path(server).write_text("")
    elif change == "a line of meta":
        meta_path(server).write_text("4\n")
    server.start()
    pub(site, server, *numbers(2, 4))
    create_channel(server, "t", "c")
    return server


@pytest.mark.parametrize(
    ("change", "real", "ours"),
    [
        ("cut", [*numbers(3), b"0\0\0\0\0\0", *numbers(2, 4)], numbers(3) + numbers(2, 4)),
        ("garbage", numbers(6), numbers(6)),
        ("zeros", numbers(6), numbers(6)),
        ("length 0", numbers(1), numbers(6)),
        ("length 25", numbers(1), numbers(6)),
        # Two wrong bytes do not tell ours what the length was.
        ("huge length", numbers(1), numbers(1) + numbers(4, 2)),
        ("length + 1", [b"000000", b"000001\0"], numbers(6)),
        ("body", [b"000000", b"100001", *numbers(4, 2)], [b"000000", b"100001", *numbers(4, 2)]),
        ("missing", numbers(2, 4), numbers(2, 4)),
        # The real one writes over them, and has read ahead what it has not yet written over.
        ("no meta", [b"000004", b"000001"], numbers(6)),
        ("garbage in meta", [b"000004", b"000001"], numbers(6)),
        ("empty meta", [b"000004", b"000001"], numbers(6)),
        ("a line of meta", [b"000004", b"000001"], numbers(6)),
    ],
)
def test_damage(site: Site, change: str, real: list[bytes], ours: list[bytes]) -> None:
    server = damaged(site, change)
    wanted = real if site.kind == "real" else ours
    assert bodies(consume(site, server, len(wanted))) == wanted
    if site.kind == "real" and "meta" in change:
        # It is still among the messages of before.
        return
    site.eventually(lambda: depth(server) == (0, 0))
    pub(site, server, b"after")
    assert bodies(consume(site, server, 1)) == [b"after"]


def test_a_smaller_max_msg_size(site: Site) -> None:
    server = site.own_nsqd(MEM0)
    pub(site, server, *[b"x" * 100] * 3)
    server.stop()
    server.flags.append("-max-msg-size=50")
    server.start()
    create_channel(server, "t", "c")
    found = consume(site, server, 0 if site.kind == "real" else 3)
    assert bodies(found) == [b"x" * 100] * len(found)
    assert ("000000.dat.bad" in sizes(server)) == (site.kind == "real")


@pytest.mark.parametrize("wrong", [9, 1])
def test_a_wrong_depth(site: Site, wrong: int) -> None:
    server = site.own_nsqd(MEM0)
    pub(site, server, *numbers(4))
    server.stop()
    meta_path(server).write_text(f"{wrong}\n0,0\n0,144\n")
    server.start()
    # Ours counts the messages of a small queue.
    wanted = wrong if site.kind == "real" else 4
    assert depth(server) == (wanted, wanted)
    create_channel(server, "t", "c")
    assert bodies(consume(site, server, 4)) == numbers(4)
    site.eventually(lambda: depth(server) == (0, 0))


def test_a_read_position_inside_of_a_message(site: Site) -> None:
    server = site.own_nsqd(MEM0)
    pub(site, server, *numbers(4))
    server.stop()
    meta_path(server).write_text("4\n0,5\n0,144\n")
    server.start()
    create_channel(server, "t", "c")
    # Ours goes back to the beginning of the file.
    wanted = [] if site.kind == "real" else numbers(4)
    assert bodies(consume(site, server, len(wanted))) == wanted
    site.eventually(lambda: depth(server) == (0, 0))
    assert ("000000.dat.bad" in sizes(server)) == (site.kind == "real")


def test_a_read_position_beyond_the_end(site: Site) -> None:
    server = site.own_nsqd(MEM0)
    pub(site, server, *numbers(4))
    server.stop()
    meta_path(server).write_text("4\n0,180\n0,144\n")
    server.start()
    create_channel(server, "t", "c")
    wanted = [] if site.kind == "real" else numbers(4)
    assert bodies(consume(site, server, len(wanted))) == wanted


@pytest.mark.parametrize("how", ["damaged", "missing", "cut"])
def test_one_of_four_files(site: Site, how: str) -> None:
    server = site.own_nsqd(MEM0, "-max-bytes-per-file=80")
    pub(site, server, *numbers(7))
    server.stop()
    path = server.data_path / "t.diskqueue.000001.dat"
    data = path.read_bytes()
    assert len(data) == 72
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[:60])
    else:
        path.write_bytes(bytes(4) + data[4:])
    server.start()
    create_channel(server, "t", "c")
    lost = {"missing": {2, 3}, "cut": {3}, "damaged": {2, 3}}[how]
    if how == "damaged" and site.kind == "embedded":
        lost = set()
    wanted = [body for number, body in enumerate(numbers(7)) if number not in lost]
    assert bodies(consume(site, server, len(wanted))) == wanted
    assert f"DISKQUEUE(t) reading at {36 if how == 'cut' else 0} of {path} - " in server.log
    if how == "missing":
        assert f"open {path}: no such file or directory" in server.log
    else:
        assert f"saving bad file as {path}.bad" in server.log
        assert "000001.dat.bad" in sizes(server)
    site.eventually(lambda: depth(server) == (0, 0))


def test_a_bad_file_of_before_is_overwritten(site: Site) -> None:
    server = site.own_nsqd(MEM0)
    pub(site, server, *numbers(2))
    server.stop()
    path = server.data_path / "t.diskqueue.000000.dat"
    data = bytearray(path.read_bytes())
    data[0:4] = bytes(4)
    path.write_bytes(data)
    bad = path.with_name(f"{path.name}.bad")
    bad.write_bytes(b"of before")
    server.start()
    create_channel(server, "t", "c")
    wanted = [] if site.kind == "real" else numbers(2)
    assert bodies(consume(site, server, len(wanted))) == wanted
    # Ours keeps it until the file is left.
    pub(site, server, b"x" * 10)
    site.eventually(lambda: bad.read_bytes() == data)


# -- a disk that fails -----------------------------------------------------------------------------


def break_folder(server: Server, queue: str = "t") -> Path:
    """Writes to the next file of the queue fail as on a full disk."""
    path = server.data_path / f"{queue}.diskqueue.000000.dat"
    path.symlink_to("/dev/full")
    return path


def test_a_full_disk(site: Site) -> None:
    server = site.own_nsqd(MEM0)
    assert post(server.http_address, "/topic/create?topic=t").status == 200
    path = break_folder(server)
    why = f"write {path}: no space left on device"
    for command, body in (
        ("PUB t", b"x"),
        ("MPUB t", mpub_body([b"x", b"y"])),
        ("DPUB t 1000", b"x"),
    ):
        client = site.client(server)
        client.command(command, body)
        word = command.split()[0]
        client.fatal(f"E_{word}_FAILED {word} failed {why}")
    for target in ("/pub?topic=t", "/mpub?topic=t", "/pub?topic=t&defer=1000"):
        reply = post(server.http_address, target, b"x")
        assert (reply.status, reply.json) == (503, {"message": "EXITING"})
    reply = get(server.http_address, "/ping")
    assert (reply.status, reply.text) == (500, f"NOK - {why}")
    assert stats(server.http_address)["health"] == f"NOK - {why}"
    assert f"Health: NOK - {why}" in get(server.http_address, "/stats").text
    assert f"TOPIC(t) ERROR: failed to write message to backend - {why}" in server.log
    assert (depth(server), topic_stats(server.http_address, "t")["message_count"]) == ((0, 0), 0)
    path.unlink()
    assert post(server.http_address, "/pub?topic=t", b"000000").status == 200
    assert get(server.http_address, "/ping").text == "OK"
    create_channel(server, "t", "c")
    assert bodies(consume(site, server, 1)) == numbers(1)


def test_memory_on_a_full_disk(site: Site) -> None:
    server = site.own_nsqd("-mem-queue-size=5")
    assert post(server.http_address, "/topic/create?topic=t").status == 200
    break_folder(server)
    answers = [post(server.http_address, "/pub?topic=t", body).status for body in numbers(7)]
    assert answers == [200] * 5 + [503] * 2
    assert server.stop() == 0
    assert "failed to write message to backend" in server.log


def test_a_channel_made_on_a_full_disk(site: Site) -> None:
    server = site.own_nsqd(MEM0)
    pub(site, server, *numbers(3))
    path = break_folder(server, "t:c")
    create_channel(server, "t", "c")
    if site.kind == "real":
        # It loses them.
        site.eventually(lambda: depth(server) == (0, 0))
        assert channel_depth(server) == 0
        return
    assert (depth(server), channel_depth(server)) == ((3, 3), 0)
    path.unlink()
    assert bodies(consume(site, server, 3)) == numbers(3)
