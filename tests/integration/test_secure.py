"""TLS, compression and AUTH, for Reader and Writer alike."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import trustme

from gnsqsync import Observer
from gnsqsync.errors import ConfigError, NegotiationFailed, NotSent, Unauthorized
from tests.integration.conftest import Client
from tests.support.authserver import AuthServer, grant, rule
from tests.support.servers import Server, Site
from tests.support.worlds import World

LAYERS = {
    "tls": {"tls": True},
    "snappy": {"snappy": True},
    "deflate": {"deflate": True, "deflate_level": 3},
    "tls+snappy": {"tls": True, "snappy": True},
    "tls+deflate": {"tls": True, "deflate": True},
}


def options_for(name: str, site: Site) -> dict[str, Any]:
    options: dict[str, Any] = dict(LAYERS[name])
    if options.pop("tls", False):
        options["tls_ca_file"] = str(site.certificates.ca_file)
    return options


@pytest.mark.parametrize("name", LAYERS)
def test_layers(client: Client, site: Site, world: World, topic: str, name: str) -> None:
    nsqd = site.nsqd(*site.certificates.flags)
    options = options_for(name, site)
    # Large and incompressible, large and compressible, small ones in a crowd.
    bodies = [os.urandom(700_000), b"a" * 900_000, *(b"%d" % n for n in range(500))]
    writer = client.writer(nsqd, **options)
    for body in bodies[:10]:
        writer.publish(topic, body)
    writer.publish_many(topic, bodies[10:])
    got: list[bytes] = []
    reader = client.consume(topic, lambda m: got.append(m.body), nsqd, max_in_flight=100, **options)
    world.eventually(lambda: len(got) == len(bodies))
    assert sorted(got) == sorted(bodies)
    world.eventually(lambda: reader.stats().finished == len(bodies))


@pytest.mark.parametrize("name", LAYERS)
def test_layers_with_many_threads_at_once(
    client: Client, site: Site, world: World, topic: str, name: str
) -> None:
    nsqd = site.nsqd(*site.certificates.flags)
    options = options_for(name, site)
    writer = client.writer(nsqd, **options)
    got: list[bytes] = []
    client.consume(
        topic, lambda m: got.append(m.body), nsqd, max_in_flight=50, concurrency=3, **options
    )

    def publish(who: int) -> None:
        for n in range(100):
            writer.publish(topic, b"%d-%d" % (who, n) * 50)

    for task in [world.spawn(publish, who) for who in range(8)]:
        task.join(60)
    world.eventually(lambda: len(got) == 800)
    assert len(set(got)) == 800


def test_a_server_that_declines_tls_is_refused(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    with pytest.raises(NotSent, match="does not offer TLS") as caught:
        client.writer(nsqd, tls=True).publish(topic, b"x")
    assert isinstance(caught.value.causes[-1], NegotiationFailed)
    reader = client.reader(topic, lambda m: None, nsqd, tls=True)
    with pytest.raises(NegotiationFailed, match="does not offer TLS"):
        reader.start()


def test_a_server_that_declines_compression_is_refused(
    client: Client, site: Site, topic: str
) -> None:
    nsqd = site.nsqd("-snappy=false", "-deflate=false")
    for options in ({"snappy": True}, {"deflate": True}):
        with pytest.raises(NotSent, match="does not offer"):
            client.writer(nsqd, **options).publish(topic, b"x")


def test_a_certificate_that_does_not_verify(
    client: Client, site: Site, world: World, topic: str
) -> None:
    nsqd = site.nsqd(*site.certificates.flags)
    with pytest.raises(NotSent, match=r"certificate .* does not verify"):
        client.writer(nsqd, tls=True).publish(topic, b"x")
    with pytest.raises(NotSent, match="does not verify"):
        client.writer(
            nsqd,
            tls_ca_file=str(site.certificates.ca_file),
            tls_server_hostname="other.example",
        ).publish(topic, b"x")
    client.writer(nsqd, tls=True, tls_verify=False).publish(topic, b"x")


def test_certificates_that_are_replaced_end_no_reader(
    client: Client, site: Site, world: World, topic: str, tmp_path: Path
) -> None:
    """nsqd's certificate does not verify until the file of authorities is right again."""
    certificates = site.certificates
    authorities = tmp_path / "authorities.pem"
    authorities.write_bytes(certificates.ca_file.read_bytes())
    nsqd = site.own_nsqd(*certificates.flags)
    reasons: list[Exception] = []
    observer = Observer()
    observer.lost = lambda nsqd_address, reason: reasons.append(reason)  # type: ignore[method-assign]
    reader = client.consume(
        topic, lambda m: None, nsqd, tls_ca_file=str(authorities), observer=observer
    )
    world.eventually(lambda: reader.stats().connections)
    trustme.CA().cert_pem.write_to_path(authorities)
    nsqd.restart()
    world.eventually(lambda: any(isinstance(one, NegotiationFailed) for one in reasons))
    assert not reader.stats().connections
    authorities.write_bytes(certificates.ca_file.read_bytes())
    world.eventually(lambda: reader.stats().connections)


def test_client_certificates(client: Client, site: Site, topic: str) -> None:
    certificates = site.certificates
    nsqd = site.nsqd(
        *certificates.flags,
        "-tls-client-auth-policy=require-verify",
        f"-tls-root-ca-file={certificates.ca_file}",
    )
    client.writer(
        nsqd,
        tls_ca_file=str(certificates.ca_file),
        tls_cert_file=str(certificates.client_cert_file),
        tls_key_file=str(certificates.client_key_file),
    ).publish(topic, b"x")
    with pytest.raises(NotSent, match="certificate"):
        client.writer(nsqd, tls_ca_file=str(certificates.ca_file)).publish(topic, b"x", timeout=3)


def test_a_rotated_secret_costs_no_publish(
    client: Client, site: Site, world: World, topic: str
) -> None:
    rights = (200, grant(rule(".*", [".*"], "publish"), ttl=1))
    with AuthServer() as auth:
        auth.replies["first"] = rights
        nsqd = site.own_nsqd(f"-auth-http-address={auth.address}")
        writer = client.writer(nsqd, auth_secret=lambda: next(iter(auth.replies)))
        writer.publish(topic, b"x")
        auth.replies = {"second": rights}

        def publish_until_the_ttl_is_over() -> bool:
            futures = [writer.publish_async(topic, b"x") for _ in range(20)]
            writer.publish(topic, b"x")
            for future in futures:
                world.eventually(future.done)
                assert future.result(0) is None
            return any("secret=second" in target for target in auth.targets)

        world.eventually(publish_until_the_ttl_is_over)
        assert writer.stats().refused == writer.stats().not_sent == 0


def test_auth(client: Client, site: Site, world: World, topic: str) -> None:
    with AuthServer() as auth:
        auth.replies["open sesame"] = (200, grant(rule(".*", [".*"], "publish", "subscribe")))
        auth.replies["read only"] = (200, grant(rule(".*", [".*"], "subscribe")))
        nsqd = site.own_nsqd(f"-auth-http-address={auth.address}")
        client.writer(nsqd, auth_secret="open sesame").publish(topic, b"x")
        got: list[bytes] = []
        client.consume(
            topic, lambda m: got.append(m.body), nsqd, auth_secret=lambda: b"open sesame"
        )
        assert world.eventually(lambda: got) == [b"x"]
        with pytest.raises(NotSent, match="auth_secret"):
            client.writer(nsqd).publish(topic, b"x")
        with pytest.raises(Exception, match="E_UNAUTHORIZED") as caught:
            client.writer(nsqd, auth_secret="read only").publish(topic, b"x")
        assert isinstance(getattr(caught.value, "error", None), Unauthorized)
        reader = client.reader(topic, lambda m: None, nsqd, auth_secret="wrong")
        reader.start(block=False)
        world.sleep(0.5)
        assert not reader.stats().connections


def test_a_secret_that_is_not_asked_for_stays_here(
    client: Client, nsqd: Server, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.writer(nsqd, auth_secret="hidden").publish(topic, b"x")
    assert "does not ask for AUTH" in caplog.text
    assert "hidden" not in caplog.text


def test_options_that_cannot_be_together() -> None:
    from gnsqsync import ConnectionOptions

    with pytest.raises(ConfigError, match="snappy and deflate are both on"):
        ConnectionOptions(snappy=True, deflate=True)
    assert "hidden" not in repr(ConnectionOptions(auth_secret="hidden"))
