"""The pages on capacity, upgrades of nsqd and hardening: what they say, done with a real nsqd."""

from __future__ import annotations

import csv
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnsqsync import NsqdHTTP, Reader, Writer
from gnsqsync.errors import NotSent, NSQError, Refused
from tests.integration.conftest import address, url
from tests.integration.test_docs_deploy import verified
from tests.support import rawclient
from tests.support.programs import Program
from tests.support.servers import Server, Site
from tests.support.texts import DOCS, code_blocks, commands_of, replaced
from tests.support.waiting import eventually

CAPACITY = DOCS / "guides" / "capacity.rst"
HARDENING = DOCS / "guides" / "hardening.rst"

pytestmark = pytest.mark.parametrize("server_kind", ["real"])


# -- capacity --------------------------------------------------------------------------------------


def of_the_page() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for block in code_blocks(CAPACITY, "python"):
        exec(block, names)
    return names


def test_the_sums_are_right(capfd: pytest.CaptureFixture[str], server_kind: str) -> None:
    of_the_page()
    shown = [block.strip() for block in code_blocks(CAPACITY, "text")]
    assert capfd.readouterr().out.strip() == "\n".join(shown)


def test_the_figures_are_those_of_the_performance_page(server_kind: str) -> None:
    table = DOCS / "guides" / "performance" / "throughput.csv"
    with table.open(encoding="utf-8") as file:
        measured = {row["Work"]: row["ours"] for row in csv.DictReader(file)}
    told = re.findall(r"^.+?  +([\d.]+)$", CAPACITY.read_text(encoding="utf-8"), re.MULTILINE)
    works = (
        "publish one by one, one thread; any CPU",
        "publish one by one, 16 threads or greenlets on one Writer; any CPU",
        "publish_many, 100 a call; any CPU",
        "consume, max_in_flight 2500, 4 workers; any CPU",
    )
    assert told == [measured[work] for work in works]


def test_bytes_of_a_message_on_disk(site: Site, server_kind: str) -> None:
    nsqd = site.own_nsqd("-mem-queue-size=0")
    with NsqdHTTP(url(nsqd)) as http:
        http.create_topic("orders")
        for channel in ("one", "two"):
            http.create_channel("orders", channel)
        with Writer(address(nsqd)) as writer:
            writer.publish_many("orders", [b"x" * 200] * 1000)
        eventually(lambda: [c.depth for c in http.stats("orders").topics[0].channels] == [1000] * 2)
    nsqd.stop()
    files = [*nsqd.data_path.glob("orders:*.diskqueue.0*.dat")]
    written = sum(path.stat().st_size for path in files)
    expected = of_the_page()["disk_bytes"](1000, 200, 1, channels=2)
    # nsqd holds one message of each queue in its hand, and writes it anew at the end.
    assert expected <= written <= expected * 1.01


# -- upgrades --------------------------------------------------------------------------------------


def test_the_commands_of_the_upgrade(site: Site, tmp_path: Path, server_kind: str) -> None:
    nsqd = site.own_nsqd()
    commands = commands_of(CAPACITY) + re.findall(
        r"^      \$ (.*)$", CAPACITY.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(commands) == 5
    said = [
        Program(
            ["bash", "-c", command.replace("127.0.0.1:4151", "{}:{}".format(*nsqd.http_address))],
            tmp_path,
        ).end()
        for command in commands
        if not command.startswith("gnsqsync")
    ]
    assert '"version":"1.3.0"' in said[0]
    assert '"topics"' in said[1]
    assert said[2] == "OK"
    (stat,) = [command for command in commands if command.startswith("gnsqsync")]
    words = stat.replace("127.0.0.1:4151", "{}:{}".format(*nsqd.http_address)).split()
    Program(["python", "-m", "gnsqsync.cli", *words[1:]], tmp_path).end()


def test_one_nsqd_after_the_other(site: Site, server_kind: str) -> None:
    """Each message that was confirmed arrives, while both nsqds are stopped and started again."""
    nsqds = [site.own_nsqd(), site.own_nsqd()]
    addresses = [address(nsqd) for nsqd in nsqds]
    confirmed: list[bytes] = []
    received: set[bytes] = set()
    is_over = threading.Event()

    def publish() -> None:
        number = 0
        while not is_over.is_set():
            number += 1
            body = b"%d" % number
            try:
                writer.publish("orders", body)
            except NSQError:
                continue
            confirmed.append(body)

    with (
        Writer(addresses) as writer,
        Reader(
            "orders",
            "billing",
            lambda message: received.add(message.body),
            nsqd_tcp_addresses=addresses,
            max_in_flight=20,
        ),
    ):
        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            for nsqd in nsqds:
                count = len(confirmed)
                eventually(lambda count=count: len(confirmed) > count + 200)
                with NsqdHTTP(url(nsqd)) as http:
                    http.pause_channel("orders", "billing")
                    eventually(lambda http=http: not total(http, "in_flight_count"))
                nsqd.stop()
                count = len(confirmed)
                # "publishers and consumers use the others"
                eventually(lambda count=count: len(confirmed) > count + 200)
                nsqd.start()
                with NsqdHTTP(url(nsqd)) as http:
                    eventually(lambda http=http: total(http, "client_count") == 1)
                    http.unpause_channel("orders", "billing")
        finally:
            is_over.set()
            publisher.join()
        eventually(lambda: set(confirmed) <= received)


def total(http: NsqdHTTP, count: str) -> int:
    """Return the sum of this count over the channels of orders."""
    return sum(getattr(c, count) for t in http.stats("orders").topics for c in t.channels)


def test_a_clean_stop_keeps_what_is_in_memory_in_flight_and_deferred(
    site: Site, server_kind: str
) -> None:
    nsqd = site.own_nsqd()
    with NsqdHTTP(url(nsqd)) as http:
        http.create_topic("orders")
        http.create_channel("orders", "billing")
        with Writer(address(nsqd)) as writer:
            writer.publish("orders", b"deferred", defer=600.0)
            writer.publish_many("orders", [b"in flight", b"in memory"])
        with Reader("orders", "billing", nsqd_tcp_addresses=address(nsqd)) as reader:
            (held,) = reader.batches(1, 30.0).__next__()
            assert held.body in (b"in flight", b"in memory")
            nsqd.stop()
    nsqd.start()
    with Reader("orders", "billing", nsqd_tcp_addresses=address(nsqd), max_in_flight=3) as reader:
        # "they are delivered as soon as it is back"
        batch = next(reader.batches(3, 30.0))
        assert {message.body for message in batch} == {b"deferred", b"in flight", b"in memory"}
        reader.finish(batch)


# -- hardening -------------------------------------------------------------------------------------


@pytest.fixture
def hard(site: Site) -> Server:
    """An nsqd with the flags of the page, but those that say where it listens."""
    (command,) = commands_of(HARDENING)
    program, *flags = command.split()
    assert program == "nsqd"
    here = {
        "/etc/nsq/server.pem": str(site.certificates.cert_file),
        "/etc/nsq/server.key": str(site.certificates.key_file),
        "/etc/nsq/ca.pem": str(site.certificates.ca_file),
    }
    flags = replaced("\n".join(flags), here).splitlines()
    assert "--http-address=127.0.0.1:4151" in flags
    return site.own_nsqd(*(flag for flag in flags if not flag.startswith("--http-address")))


@pytest.fixture
def block(site: Site, hard: Server, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The names of the page's program, run beside that nsqd."""
    (text,) = code_blocks(HARDENING, "python")
    secret = tmp_path / "secret"
    secret.write_text("a secret\n")
    text = replaced(
        text,
        {
            "/run/secrets/nsq": str(secret),
            "/etc/nsq/ca.pem": str(site.certificates.ca_file),
            "/etc/nsq/client.pem": str(site.certificates.client_cert_file),
            "/etc/nsq/client.key": str(site.certificates.client_key_file),
            "nsqd.internal:4150": address(hard),
        },
    )
    names: dict[str, Any] = {}
    exec(text, names)
    yield names
    names["writer"].close()


def test_the_client_of_the_page_is_served(block: dict[str, Any], server_kind: str) -> None:
    block["writer"].publish("orders", b"x")
    with pytest.raises(Refused):
        block["writer"].publish("orders", b"x" * 262_145)


def test_nobody_else_is(site: Site, hard: Server, server_kind: str) -> None:
    with Writer(address(hard)) as writer, pytest.raises(Refused, match="TLS required"):
        writer.publish("orders", b"x")
    without_certificate = {"tls_ca_file": str(site.certificates.ca_file), "publish_timeout": 5.0}
    with Writer(address(hard), **without_certificate) as writer, pytest.raises(NotSent):
        writer.publish("orders", b"x")
    # "HTTP only from the machine itself": there it is in clear.
    assert rawclient.get(hard.http_address, "/ping").body == b"OK"


def test_the_pod_may_be_like_this(server_kind: str) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    (context,) = map(yaml.safe_load, code_blocks(HARDENING, "yaml"))
    container = {"name": "invoices", "image": "shop:1", **context}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "invoices"},
        "spec": {"containers": [container]},
    }
    kubernetes.validate(pod, kubernetes.latest_version(), strict=True)
    context["securityContext"]["runAsNoRoot"] = True
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(pod, kubernetes.latest_version(), strict=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_has_nothing_to_say(tmp_path: Path, server_kind: str) -> None:
    (unit,) = code_blocks(HARDENING, "ini")
    assert verified(tmp_path, {"invoices.service": unit}) == ""
