"""``gnsqsync stat --once`` where there is nothing to show, and names that are nearly right."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gnsqsync import NsqdHTTP
from gnsqsync.cli.app import run_command
from gnsqsync.commands.integrations import shown, topics_of
from gnsqsync.embedded import Nsqd, Nsqlookupd
from gnsqsync.errors import NSQError
from gnsqsync.http.nsqd_types import Stats
from tests.support.serving import fake_server


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Nsqd]:
    with Nsqd() as server:
        yield server


def stat(*words: str) -> int:
    return run_command(["stat", "--once", *words])


def test_an_nsqd_without_topics(nsqd: Nsqd, capsys: pytest.CaptureFixture[str]) -> None:
    assert stat("-H", nsqd.http_address) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        f"gnsqsync: there are no topics (asked: http://{nsqd.http_address})\n",
    )


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("t",), "topic 't'"),
        (("-c", "ch"), "channel 'ch'"),
        (("t", "-c", "ch"), "channel 'ch' of topic 't'"),
    ],
)
def test_missing_topics_and_channels(
    nsqd: Nsqd, words: tuple[str, ...], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stat(*words, "-H", nsqd.http_address) == 1
    assert capsys.readouterr().err == (
        f"gnsqsync: no such {name} (asked: http://{nsqd.http_address})\n"
    )


@pytest.mark.parametrize("odd", [{"topic_name": "\ud800"}, {"topic_name": "odd", "depth": "x"}, 5])
def test_a_broken_entry_hides_no_other(odd: object, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server() as server:
        server.answer({"version": "1.3.0", "topics": [odd, {"topic_name": "good", "depth": 7}]})
        assert stat("-H", server.address) == 0
    assert capsys.readouterr().out.startswith("topic=good depth=7 ")


def _stuck_server(rdy: int, in_flight: int = 0) -> dict[str, object]:
    channel = {
        "channel_name": "billing",
        "depth": 12,
        "in_flight_count": in_flight,
        "client_count": 2,
        "clients": [{"ready_count": rdy}, {"ready_count": 0}],
    }
    return {"version": "1.3.0", "topics": [{"topic_name": "orders", "channels": [channel]}]}


@pytest.mark.parametrize(("rdy", "in_flight", "told"), [(0, 0, True), (1, 0, False), (0, 3, False)])
def test_consumers_in_a_backoff_are_told_of(
    rdy: int, in_flight: int, told: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """nsqd knows their RDY alone."""
    line = (
        "orders/billing: 12 messages wait, and no consumer takes any (RDY 0): in backoff, or paused"
    )
    with fake_server() as server:
        server.answer(_stuck_server(rdy, in_flight))
        assert stat("-H", server.address) == 0
        printed = capsys.readouterr().out.splitlines()
        assert stat("-H", server.address, "--json") == 0
        (topic,) = json.loads(capsys.readouterr().out)["topics"]
        # The command of Django and Flask.
        topics, failures = topics_of(None, nsqd_http=[server.address])
    assert (line in printed) is told
    assert topic["channels"][0].get("ready") == (None if in_flight else rdy)
    assert not failures and topics["orders"].channels["billing"].ready == rdy
    head, *rest = shown(topics, failures, as_json=False)
    assert head.endswith("RDY") and rest[1].endswith(f" {rdy}")
    assert rest[2:] == ([line] if told else [])


def test_consumers_of_an_nsqd_that_does_not_answer_again_may_have_rdy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = NsqdHTTP.stats

    def stats(self: NsqdHTTP, topic: str | None, channel: str | None, **rest: bool) -> Stats:
        if channel is not None:
            raise NSQError("it is gone")
        return ask(self, topic, channel, **rest)

    monkeypatch.setattr(NsqdHTTP, "stats", stats)
    with fake_server() as server:
        server.answer(_stuck_server(0))
        assert stat("-H", server.address) == 0
    assert "RDY 0" not in capsys.readouterr().out


def test_an_nsqlookupd_that_knows_no_nsqd(capsys: pytest.CaptureFixture[str]) -> None:
    with Nsqlookupd() as lookupd:
        assert stat("-l", lookupd.http_address) == 1
        assert capsys.readouterr().err == (
            f"gnsqsync: no nsqd is registered (asked: http://{lookupd.http_address})\n"
        )


def test_many_servers_are_not_all_named(nsqd: Nsqd, capsys: pytest.CaptureFixture[str]) -> None:
    """The same nsqd under several names."""
    port = nsqd.http_address.rpartition(":")[2]
    addresses = [f"127.0.0.{number}:{port}" for number in range(1, 9)]
    with NsqdHTTP(nsqd.http_address) as client:
        client.create_topic("other")
        try:
            assert stat("t", *(word for each in addresses for word in ("-H", each))) == 1
        finally:
            client.delete_topic("other")
    err = capsys.readouterr().err
    assert "no such topic 't'" in err and addresses[0] in err
    assert "and 3 more" in err and addresses[-1] not in err


@pytest.mark.parametrize(
    ("words", "name"),
    [(["pubb"], "pub"), (["nsqlookup"], "nsqlookupd"), (["topic", "crate"], "create")],
)
def test_did_you_mean(words: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(words) == 2
    assert f"Did you mean '{name}'?" in capsys.readouterr().err


def test_an_nsqd_that_hangs_costs_one_timeout_at_any_backlog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask, asked = NsqdHTTP.stats, []

    def stats(self: NsqdHTTP, topic: str | None, channel: str | None, **rest: bool) -> Stats:
        if channel is not None:
            asked.append((topic, channel))
            raise NSQError("no answer in time")
        return ask(self, topic, channel, **rest)

    monkeypatch.setattr(NsqdHTTP, "stats", stats)
    channels = [
        {"channel_name": name, "depth": 1, "client_count": 1} for name in ("billing", "mail", "log")
    ]
    with fake_server() as server:
        server.answer({"topics": [{"topic_name": "orders", "channels": channels}]})
        assert stat("-H", server.address) == 0
    assert len(asked) == 1
