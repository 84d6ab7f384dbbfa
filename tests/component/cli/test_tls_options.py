"""TLS options of all commands that ask a server: the same ones, and they reach each request."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gnsqsync import NsqdHTTP
from gnsqsync.admin.cluster_metrics import ClusterMetrics
from gnsqsync.cli import common
from gnsqsync.cli.app import COMMANDS, gnsqsync, run_command
from gnsqsync.commands.integrations import topics_of
from gnsqsync.embedded import Nsqd, Nsqlookupd
from tests.support.servers import Certificates

BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
ADDRESSES = {"--nsqd-tcp-address", "--nsqd-http-address", "--lookupd-http-address"}


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of each command, those in groups, too."""
    context = click.Context(group)
    for name in group.list_commands(context) if words else (*COMMANDS, "spark"):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name)


def options_of(words: tuple[str, ...]) -> dict[str, object]:
    """Each option of a command, by its long name."""
    command: click.Command | None = gnsqsync
    for word in words:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None
    options = [one for one in command.params if isinstance(one, click.Option)]
    return {one.opts[0]: (one.opts, one.help, one.metavar, one.is_flag) for one in options}


ASKING = [words for words in commands(gnsqsync) if ADDRESSES & options_of(words).keys()]


def test_the_walk_finds_the_commands() -> None:
    names = {words[words[0] == "spark"] for words in ASKING}
    assert names >= {"pub", "tail", "consume", "to-file", "stat", "exporter", "topic", "channel"}
    assert names >= {"dead-letters", "archive", "replay", "log"}


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_each_command_that_asks_a_server_has_the_same_tls_options(words: tuple[str, ...]) -> None:
    @common.connection_options
    @click.command
    def whole() -> None:
        """A command with the options of connections."""

    one_place = {one.opts[0]: one for one in whole.params if isinstance(one, click.Option)}
    found = options_of(words)
    over_tcp = "--nsqd-tcp-address" in found
    for name, option in one_place.items():
        if name.startswith(("--tls-", "--no-tls-", "--verbose")) or over_tcp:
            assert found.get(name) == (option.opts, option.help, option.metavar, option.is_flag)


@pytest.fixture
def nsqd(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nsqd]:
    """An nsqd with --tls-required: http answers 403 and the port of https."""
    for name in BUNDLES:
        monkeypatch.delenv(name, raising=False)
    with (
        Nsqlookupd() as lookupd,
        Nsqd(
            tls_cert=str(certificates.cert_file),
            tls_key=str(certificates.key_file),
            tls_required="true",
            https_address="127.0.0.1:0",
            broadcast_address="127.0.0.1",
            lookupd_tcp_address=(lookupd.tcp_address,),
        ) as nsqd,
    ):
        with NsqdHTTP(nsqd.http_address, tls_ca_file=str(certificates.ca_file)) as http:
            http.create_topic("t")
        yield nsqd


def stat(nsqd: Nsqd, *words: str) -> int:
    return run_command(["stat", "t", "--once", "--json", "-H", nsqd.http_address, *words])


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_stat_topic_and_channel_follow_to_https(
    nsqd: Nsqd, certificates: Certificates, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stat(nsqd) == 1
    assert "trust its authority by tls_ca_file" in capsys.readouterr().out
    trusting = ("--tls-ca-file", str(certificates.ca_file))
    assert stat(nsqd, *trusting) == 0
    assert json.loads(capsys.readouterr().out)["topics"][0]["topic"] == "t"
    assert stat(nsqd, "--no-tls-verify") == 0
    for words in (["topic", "pause", "t"], ["channel", "create", "t", "c"]):
        assert run_command([*words, "-H", nsqd.http_address]) == 1
        assert run_command([*words, "-H", nsqd.http_address, *trusting]) == 0
    with NsqdHTTP(nsqd.http_address, tls_verify=False) as http:
        (topic,) = http.stats("t").topics
    assert topic.paused
    assert [channel.channel_name for channel in topic.channels] == ["c"]


@pytest.mark.parametrize("name", BUNDLES)
def test_the_bundle_of_the_environment_counts(
    nsqd: Nsqd, certificates: Certificates, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, str(certificates.ca_file))
    assert stat(nsqd) == 0
    assert run_command(["pub", "t", "--tls", "-t", nsqd.tcp_address, __file__]) == 0
    # An option that is given counts more.
    assert stat(nsqd, "--tls-ca-file", str(certificates.client_cert_file)) == 1


def test_an_nsqd_that_demands_tls_is_up_for_the_exporter(
    nsqd: Nsqd, certificates: Certificates
) -> None:
    for options, up in (({}, 0.0), ({"tls_ca_file": str(certificates.ca_file)}, 1.0)):
        metrics = ClusterMetrics([nsqd.http_address], [], **options)
        registry = CollectorRegistry()
        registry.register(metrics)
        try:
            page = generate_latest(registry).decode()
        finally:
            metrics.close()
        assert f'nsq_up{{nsqd="{nsqd.http_address}"}} {up}' in page


def test_commands_of_frameworks_use_the_files_of_the_settings(
    nsqd: Nsqd, certificates: Certificates
) -> None:
    http = [nsqd.http_address]
    topics, failures = topics_of("t", nsqd_http=http)
    assert not topics and "trust its authority" in failures[0]
    settings = {"tls_ca_file": str(certificates.ca_file), "concurrency": 4}
    topics, failures = topics_of("t", nsqd_http=http, options=settings)
    assert list(topics) == ["t"] and not failures
