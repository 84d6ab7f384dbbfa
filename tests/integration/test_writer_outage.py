"""A Writer beside nsqds that cannot take its publishes: what they say, and how soon it is told."""

from __future__ import annotations

import os
import signal
import statistics
import time
from pathlib import Path

import pytest

from gnsqsync import Writer
from gnsqsync.errors import (
    AuthFailed,
    NegotiationFailed,
    NotSent,
    OutcomeUnknown,
    PublishError,
    Refused,
    WrongPort,
)
from tests.integration.conftest import Client
from tests.support.authserver import AuthServer, grant, rule
from tests.support.servers import Server, Site
from tests.support.worlds import World


def fails(writer: Writer, topic: str, timeout: float = 60) -> tuple[float, PublishError]:
    began = time.monotonic()
    with pytest.raises(PublishError) as caught:
        writer.publish(topic, b"x", timeout=timeout)
    return time.monotonic() - began, caught.value


def at_once(outcomes: list[tuple[float, PublishError]]) -> None:
    """Within 50 ms where the machine has nothing else to do."""
    seconds = [took for took, _ in outcomes]
    assert min(seconds) < 0.05, outcomes
    assert statistics.median(seconds) < 0.5, outcomes


def fails_at_once(writer: Writer, topic: str) -> PublishError:
    took, error = fails(writer, topic)
    assert took < 30, error
    assert isinstance(error, NotSent)
    assert str(error).startswith("no nsqd accepts this client: ")
    at_once([fails(writer, topic) for _ in range(7)])
    return error


def test_an_http_port_is_told_at_once(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    where = "{}:{}".format(*nsqd.http_address)
    writer = client.keep(Writer(where, runtime=world.runtime))
    error = fails_at_once(writer, topic)
    assert isinstance(error, NotSent)
    assert isinstance(error.causes[-1], WrongPort)
    assert "this is an HTTP port; use nsqd's TCP port (4150 by default)" in str(error)


def test_a_refused_secret_is_told_at_once(client: Client, site: Site, topic: str) -> None:
    with AuthServer() as auth:
        auth.replies["nothing"] = (200, grant())
        nsqd = site.own_nsqd(f"-auth-http-address={auth.address}")
        error = fails_at_once(client.writer(nsqd, auth_secret="wrong"), topic)
        assert isinstance(error, NotSent)
        assert isinstance(error.causes[-1], AuthFailed)
        # A secret that is known and allows nothing.
        assert "E_UNAUTHORIZED" in str(
            fails_at_once(client.writer(nsqd, auth_secret="nothing"), topic)
        )
        assert "auth_secret" in str(fails_at_once(client.writer(nsqd), topic))
        # It is allowed after all.
        auth.replies["wrong"] = (200, grant(rule(".*", [".*"], "publish")))
        client.writer(nsqd, auth_secret="wrong").publish(topic, b"x")


def test_a_certificate_that_is_refused_is_told_at_once(
    client: Client, site: Site, topic: str
) -> None:
    certificates = site.certificates
    nsqd = site.nsqd(
        *certificates.flags,
        "-tls-client-auth-policy=require-verify",
        f"-tls-root-ca-file={certificates.ca_file}",
    )
    for options, words in (
        ({"tls": True}, "does not verify"),
        ({"tls_ca_file": str(certificates.ca_file)}, "certificate"),
    ):
        error = fails_at_once(client.writer(nsqd, **options), topic)
        assert isinstance(error, NotSent)
        assert isinstance(error.causes[-1], NegotiationFailed)
        assert words in str(error)


def test_an_nsqd_that_requires_tls_says_so_at_once(client: Client, site: Site, topic: str) -> None:
    """Not in the handshake, but to the publish: so it is refused, each time."""
    nsqd = site.nsqd(*site.certificates.flags, "-tls-required=true")
    writer = client.writer(nsqd)
    for _ in range(3):
        took, error = fails(writer, topic)
        assert took < 30
        assert isinstance(error, Refused)
        assert "TLS required" in str(error)


def test_an_nsqd_without_tls_is_told_at_once(client: Client, nsqd: Server, topic: str) -> None:
    assert "does not offer TLS" in str(fails_at_once(client.writer(nsqd, tls=True), topic))


def test_a_stopped_nsqd(client: Client, site: Site, world: World, topic: str) -> None:
    nsqd = site.own_nsqd()
    writer = client.writer(nsqd, publish_timeout=0.6)
    writer.publish(topic, b"x")
    os.kill(nsqd.pid, signal.SIGSTOP)
    try:
        tasks = Path(f"/proc/{nsqd.pid}/task")
        world.eventually(
            lambda: all("State:\tT" in (task / "status").read_text() for task in tasks.iterdir())
        )
        under_way = [world.spawn(fails, writer, topic, 0.6) for _ in range(4)]
        assert {type(task.join()[1]) for task in under_way} == {OutcomeUnknown}
        outcomes = [fails(writer, topic) for _ in range(7)]
        at_once(outcomes)
        for _, error in outcomes:
            assert isinstance(error, NotSent)
            assert "did not answer the publish within 0.6 s" in str(error)
        world.sleep(1)
        assert writer.stats().outage_seconds > 1.5
    finally:
        os.kill(nsqd.pid, signal.SIGCONT)
    began = time.monotonic()
    world.eventually(lambda: not writer.stats().outage_seconds)
    assert time.monotonic() - began < 30
    writer.publish(topic, b"x", timeout=60)
    # The late answers of the four came, too.
    world.eventually(lambda: writer.stats().published == 6)
    world.eventually(lambda: len(writer.stats().connections) == 1)
