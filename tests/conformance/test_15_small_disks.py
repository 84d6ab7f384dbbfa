"""A file system of 1 MB that is full, or cannot be written: what is said, what is kept.

Mounts it, so it needs to be root; it is skipped where that is not allowed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.rows import create_channel
from tests.support.needs import missing
from tests.support.rawclient import get, mpub_body, post, stats, topic_stats
from tests.support.servers import Server, Site


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


class Disk:
    """An nsqd whose data folder is a small file system. ``filler`` is a file of somebody else."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.folder = server.data_path
        self.filler = self.folder / "filler"

    def fill(self) -> None:
        """Until no byte fits any more."""
        with open(self.filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    def free(self) -> None:
        self.filler.unlink()

    def read_only(self, is_so: bool) -> None:
        mount("-o", f"remount,{'ro' if is_so else 'rw'}", str(self.folder))


@pytest.fixture
def disk(site: Site) -> Iterator[Disk]:
    server = site.own_nsqd("-mem-queue-size=0")
    server.stop()
    folder = server.data_path
    try:
        mount("-t", "tmpfs", "-o", "size=1m", "none", str(folder))
    except (OSError, subprocess.CalledProcessError) as error:
        missing(error)
    try:
        server.start()
        assert post(server.http_address, "/topic/create?topic=t").status == 200
        site.eventually(lambda: b'"t"' in (folder / "nsqd.dat").read_bytes())
        yield Disk(server)
    finally:
        server.kill()
        subprocess.run(["umount", "-l", str(folder)], check=True)


def refused(site: Site, server: Server, why: str, body: bytes) -> None:
    """Every way to publish says so, and so does the health of the server."""
    for command, data in (
        ("PUB t", body),
        ("MPUB t", mpub_body([body, b"y"])),
        ("DPUB t 1000", body),
    ):
        client = site.client(server)
        client.command(command, data)
        word = command.split()[0]
        client.fatal(f"E_{word}_FAILED {word} failed {why}")
    for target in ("/pub?topic=t", "/mpub?topic=t"):
        reply = post(server.http_address, target, body)
        assert (reply.status, reply.json) == (503, {"message": "EXITING"})
    reply = get(server.http_address, "/ping")
    assert (reply.status, reply.text) == (500, f"NOK - {why}")
    assert stats(server.http_address)["health"] == f"NOK - {why}"


def drained(site: Site, server: Server, wanted: list[bytes]) -> None:
    create_channel(server, "t", "c")
    client = site.client(server)
    client.subscribe("t", "c", 100)
    found = client.messages(len(wanted))
    assert [message.body for message in found] == wanted
    client.fin(*found)
    client.silent(0.3)
    client.close()


def data_file(folder: Path) -> Path:
    return folder / "t.diskqueue.000000.dat"


def test_full_and_free_again(site: Site, disk: Disk) -> None:
    server = disk.server
    first, large = b"1" * 4000, b"x" * 90_000
    assert post(server.http_address, "/pub?topic=t", first).status == 200
    disk.fill()
    refused(site, server, f"write {data_file(disk.folder)}: no space left on device", large)
    assert topic_stats(server.http_address, "t")["depth"] == 1
    disk.free()
    assert post(server.http_address, "/pub?topic=t", b"2").status == 200
    assert get(server.http_address, "/ping").text == "OK"
    assert server.stop() == 0
    server.start()
    assert topic_stats(server.http_address, "t")["depth"] == 2
    drained(site, server, [first, b"2"])
    if site.kind == "embedded":
        # The real one leaves a part of the large message behind, which is bad when it is reached.
        assert not list(disk.folder.glob("*.bad"))


def test_an_mpub_that_fits_in_part(site: Site, disk: Disk) -> None:
    server = disk.server
    # The file is there, with room up to the end of its page.
    assert post(server.http_address, "/pub?topic=t", b"0").status == 200
    disk.fill()
    client = site.client(server)
    client.command("MPUB t", mpub_body([b"1", b"x" * 90_000, b"2"]))
    why = f"write {data_file(disk.folder)}: no space left on device"
    client.fatal(f"E_MPUB_FAILED MPUB failed {why}")
    found = topic_stats(server.http_address, "t")
    assert (found["depth"], found["message_count"]) == (2, 2)
    # A small one fits, and the disk is well again.
    assert post(server.http_address, "/pub?topic=t", b"3").status == 200
    assert get(server.http_address, "/ping").text == "OK"
    disk.free()
    drained(site, server, [b"0", b"1", b"3"])


def test_read_only_and_writable_again(site: Site, disk: Disk) -> None:
    server = disk.server
    disk.read_only(True)
    refused(site, server, f"open {data_file(disk.folder)}: read-only file system", b"x")
    disk.read_only(False)
    assert post(server.http_address, "/pub?topic=t", b"1").status == 200
    assert get(server.http_address, "/ping").text == "OK"
    drained(site, server, [b"1"])


def test_read_only_at_the_start(site: Site, disk: Disk) -> None:
    server = disk.server
    server.stop()
    disk.read_only(True)
    assert server.run_to_the_end() == 1
    assert "failed to persist metadata - " in server.log
    assert "read-only file system" in server.log
