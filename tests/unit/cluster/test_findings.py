"""Each finding from a snapshot alone, and snapshots of clusters in which all is well."""

from __future__ import annotations

from typing import Any

import pytest

from gnsqsync.cluster.diagnosis import Diagnosis, judge
from gnsqsync.cluster.findings import Level
from gnsqsync.cluster.sight import Nsqd, Snapshot, Trial
from gnsqsync.http.nsqd_types import NsqdInfo
from gnsqsync.wire.handshake import Negotiated
from tests.unit.cluster.cases import (
    LOOKUPD,
    SECOND,
    channel,
    cluster,
    consumer,
    lookupd,
    node,
    nsqd,
    topic,
)

GOOD = topic(channel(consumer()))
SECOND_LOOKUPD = "http://10.0.0.7:4161"
AWAY = Trial("n1:4150", "away", "cannot connect to n1:4150: Connection refused")


def agreed(**values: Any) -> Negotiated:
    known: dict[str, Any] = {
        "version": "1.3.0",
        "max_rdy_count": 2500,
        "msg_timeout": 60.0,
        "max_msg_timeout": 900.0,
        "tls": False,
        "snappy": False,
        "deflate": False,
        "deflate_level": 6,
        "sample_rate": 0,
        "auth_required": False,
        "output_buffer_size": 16384,
        "output_buffer_timeout": 0.25,
    }
    return Negotiated(**{**known, **values})


def one(seen: Snapshot) -> tuple[str, Level, str]:
    """Return the only finding: its kind, level and words."""
    (found,) = judge(seen)
    return found.kind, found.level, f"{found.where} | {found.wrong} | {found.right}"


def moving(after: dict[str, Any], before: dict[str, Any], *clients: dict[str, Any]) -> Snapshot:
    """Return a cluster whose channel had other counts at the first look."""
    clients = clients or (consumer(),)
    return cluster(
        nsqd(topic(channel(*clients, **after)), before=[topic(channel(*clients, **before))])
    )


OF_CHANNELS: list[tuple[str, Snapshot, Level, str]] = [
    (
        "no_consumers",
        cluster(nsqd(topic(channel(depth=7)))),
        Level.ERROR,
        "No consumer is connected to the channel; 7 messages wait.",
    ),
    ("no_consumers", cluster(nsqd(topic(channel()))), Level.HINT, "no message waits"),
    (
        "not_everywhere",
        cluster(nsqd(GOOD), nsqd(topic(channel(depth=1)), host="n2")),
        Level.ERROR,
        "No consumer is connected at n2:4150, though 1 consumer elsewhere; 1 message waits there.",
    ),
    (
        "channel_paused",
        cluster(nsqd(topic(channel(consumer(), depth=3, paused=True)))),
        Level.ERROR,
        "gnsqsync channel unpause t c",
    ),
    (
        "channel_paused",
        cluster(nsqd(topic(channel(consumer(), paused=True)))),
        Level.WARNING,
        "is paused at its nsqd, so its consumers get nothing; no message waits.",
    ),
    (
        "rdy_zero",
        cluster(nsqd(topic(channel(consumer(0), consumer(0), depth=9)))),
        Level.ERROR,
        "All consumers (2) have RDY 0, so nsqd sends nothing; 9 messages wait.",
    ),
    (
        "rdy_zero",
        cluster(nsqd(topic(channel(consumer(0), depth=9, requeue_count=4)))),
        Level.ERROR,
        "They are probably in backoff, after 4 requeues.",
    ),
    (
        "rdy_elsewhere",
        cluster(nsqd(GOOD), nsqd(topic(channel(consumer(0), depth=2)), host="n2")),
        Level.WARNING,
        "1 consumer at n2:4150 has RDY 0, and RDY at other nsqds only",
    ),
    (
        "no_answers",
        moving({"depth": 8, "in_flight_count": 1}, {"depth": 8, "in_flight_count": 1}),
        Level.WARNING,
        "1 message is in flight, and none was answered in 2.0 s; 8 messages wait.",
    ),
    (
        "falls_behind",
        moving(
            {"depth": 40, "in_flight_count": 1, "message_count": 200},
            {"depth": 10, "in_flight_count": 1, "message_count": 100},
        ),
        Level.WARNING,
        "more come than leave: 50.0 a second against 35.0. | Raise max_in_flight",
    ),
    (
        "falls_behind",
        moving(
            {"depth": 40, "in_flight_count": 5, "message_count": 200},
            {"depth": 10, "in_flight_count": 5, "message_count": 100},
            consumer(5),
        ),
        Level.WARNING,
        "Start more consumers",
    ),
    (
        "drains",
        moving({"depth": 10, "in_flight_count": 1}, {"depth": 30, "in_flight_count": 1}),
        Level.HINT,
        "10 messages wait, and 10.0 leave a second; the channel is empty in 1 s.",
    ),
    (
        "requeue_loop",
        moving({"requeue_count": 60, "deferred_count": 0}, {"requeue_count": 20}),
        Level.ERROR,
        "Messages go round: 40 requeues in 2.0 s, and 0 messages done.",
    ),
    (
        "requeue_loop",
        moving(
            {"requeue_count": 1, "depth": 2, "in_flight_count": 1},
            {"depth": 2, "in_flight_count": 1},
        ),
        Level.WARNING,
        "1 requeue in 2.0 s, and 0 messages done.",
    ),
    (
        "many_requeues",
        cluster(nsqd(topic(channel(consumer(), requeue_count=100, in_flight_count=1)))),
        Level.WARNING,
        "100 requeues of 100 messages",
    ),
    (
        "timeouts",
        moving({"timeout_count": 3}, {"timeout_count": 1}),
        Level.WARNING,
        "come again: 2 in 2.0 s (nsqd's --msg-timeout: 60 s).",
    ),
    (
        "timeouts",
        cluster(nsqd(topic(channel(consumer(), timeout_count=10, in_flight_count=1)))),
        Level.WARNING,
        "10 of 100 messages",
    ),
    (
        "deferred",
        cluster(nsqd(topic(channel(consumer(), deferred_count=2)))),
        Level.HINT,
        "2 messages wait for their time.",
    ),
    (
        "deferred",
        cluster(nsqd(topic(channel(consumer(), deferred_count=1, requeue_count=3)))),
        Level.HINT,
        "1 message waits for its time, some after a failure (3 requeues so far).",
    ),
    (
        "programs",
        cluster(nsqd(topic(channel(consumer(), consumer(user_agent="pynsq/0.9.1"))))),
        Level.HINT,
        "gnsqsync on w1; pynsq on w1",
    ),
    (
        "rdy_limit",
        cluster(
            nsqd(
                topic(channel(consumer(50), depth=2)),
                before=[topic(channel(consumer(50)))],
                limits={"max_rdy_count": 50},
            )
        ),
        Level.HINT,
        "the highest RDY that nsqd n1:4150 allows, 50, and 2 messages wait.",
    ),
    (
        "sampled",
        cluster(nsqd(topic(channel(consumer(sample_rate=10))))),
        Level.HINT,
        "(10 %)",
    ),
    (
        "reconnects",
        cluster(
            nsqd(
                topic(channel(consumer(remote_address="10.0.0.9:2"))),
                before=[topic(channel(consumer(remote_address="10.0.0.9:1")))],
            )
        ),
        Level.WARNING,
        "1 consumer went and 1 consumer came",
    ),
    (
        "late_channel",
        cluster(nsqd(topic(channel(consumer(), message_count=0)))),
        Level.HINT,
        "got none of the 100 messages of its topic",
    ),
    ("no_channel", cluster(nsqd(topic(depth=4))), Level.ERROR, "4 messages wait for the first"),
    ("no_channel", cluster(nsqd(topic())), Level.HINT, "no message waits for the first one"),
    (
        "no_channel",
        cluster(nsqd(GOOD), nsqd(topic(depth=4), host="n2")),
        Level.ERROR,
        "has no channel at 1 of 2 nsqds",
    ),
    (
        "topic_paused",
        cluster(nsqd(topic(channel(consumer()), depth=5, paused=True))),
        Level.ERROR,
        "paused at its nsqd, so its channels get nothing; 5 messages wait.",
    ),
    (
        "topic_paused",
        cluster(nsqd(topic(channel(consumer()), paused=True)), nsqd(GOOD, host="n2")),
        Level.WARNING,
        "paused at 1 of 2 nsqds",
    ),
    (
        "dead_letters",
        cluster(
            nsqd(
                topic(channel(depth=6), name="t.dead"),
                listed={LOOKUPD: node(topics=["t.dead"])},
            )
        ),
        Level.HINT,
        "6 dead letters wait in t.dead for a person.",
    ),
    (
        "no_such_topic",
        cluster(nsqd(listed={LOOKUPD: node(topics=["orders"])}), topic="order"),
        Level.ERROR,
        "No nsqd has the topic order (1 nsqd answered). | Did you mean orders?",
    ),
    (
        "no_such_channel",
        cluster(nsqd(GOOD), topic="t", channel="d"),
        Level.ERROR,
        "No nsqd has the channel d of topic t",
    ),
]

OF_SERVERS: list[tuple[str, Snapshot, Level, str]] = [
    (
        "lookupd_away",
        cluster(nsqd(GOOD), lookupds=[lookupd(), lookupd(address="http://x:4161", error="no")]),
        Level.ERROR,
        "nsqlookupd http://x:4161 does not answer: no",
    ),
    ("no_nsqd", cluster(), Level.ERROR, f"No nsqd is registered at {LOOKUPD}."),
    (
        "nsqd_unreachable",
        cluster(nsqd(GOOD, tcp=AWAY)),
        Level.ERROR,
        "at the address that nsqlookupd lists: cannot connect to n1:4150",
    ),
    (
        "nsqd_unreachable",
        cluster(nsqd(GOOD, tcp=AWAY, listed={}), lookupds=[]),
        Level.ERROR,
        "correct the address",
    ),
    (
        "nsqd_refuses",
        cluster(nsqd(GOOD, tcp=Trial("n1:4150", "refused", "n1 requires AUTH"))),
        Level.ERROR,
        "n1 requires AUTH",
    ),
    (
        "nsqd_hangs",
        cluster(nsqd(GOOD, tcp=Trial("n1:4150", "silent", "no answer to IDENTIFY"))),
        Level.ERROR,
        "n1:4150 takes connections and does not answer: no answer to IDENTIFY",
    ),
    (
        "nsqd_away",
        cluster(Nsqd("n3:4151", "n3:4151", "no", http=Trial("n3:4151", "away", "no")), lookupds=[]),
        Level.ERROR,
        "nsqd n3:4151 does not answer: no",
    ),
    (
        "http_unreachable",
        cluster(nsqd(GOOD, http=Trial("n1:4151", "away", "no connection within 1 s"))),
        Level.WARNING,
        "does not answer at n1:4151: no connection within 1 s",
    ),
    (
        "other_nsqd",
        cluster(nsqd(GOOD, http=Trial("n1:4151", "other", "n9:4150 (nine)"))),
        Level.ERROR,
        "leads to another nsqd: n9:4150 (nine).",
    ),
    ("nsqd_went", cluster(nsqd(GOOD, error="no")), Level.ERROR, "and then no more: no"),
    (
        "loopback",
        cluster(nsqd(GOOD, host="127.0.0.1")),
        Level.ERROR,
        "leads each consumer to its own machine",
    ),
    (
        "loopback",
        cluster(
            nsqd(GOOD, host="localhost", listed={"http://127.0.0.1:4161": node("localhost")}),
            lookupds=[lookupd(node("localhost"), address="http://127.0.0.1:4161")],
        ),
        Level.ERROR,
        "--broadcast-address",
    ),
    (
        "same_address",
        cluster(
            nsqd(GOOD), lookupds=[lookupd(node(), node(remote_address="10.0.0.3:7", hostname="b"))]
        ),
        Level.ERROR,
        "2 nsqds are registered with the same address n1:4150: b (10.0.0.3:7), n1 (10.0.0.2:6000)",
    ),
    (
        "unlisted",
        cluster(nsqd(topic(channel(consumer(), depth=3)), listed={})),
        Level.ERROR,
        "No nsqlookupd lists nsqd n1:4150, where 3 messages wait.",
    ),
    ("unlisted", cluster(nsqd(GOOD, listed={})), Level.WARNING, "where no message waits."),
    (
        "partly_listed",
        cluster(nsqd(GOOD), lookupds=[lookupd(node()), lookupd(address=SECOND_LOOKUPD)]),
        Level.WARNING,
        f"n1:4150 is not registered at {SECOND_LOOKUPD}",
    ),
    (
        "topic_unlisted",
        cluster(nsqd(GOOD, listed={LOOKUPD: node(topics=[], tombstones=[])})),
        Level.WARNING,
        "no nsqlookupd lists the topic there",
    ),
    (
        "tombstoned",
        cluster(nsqd(GOOD, listed={LOOKUPD: node(tombstones=[True])})),
        Level.WARNING,
        "tombstoned at nsqd n1:4150, so no new consumer finds it",
    ),
    (
        "unhealthy",
        cluster(nsqd(GOOD, health="NOK - no space left on device")),
        Level.ERROR,
        "n1:4150 is not healthy: NOK - no space left on device",
    ),
    (
        "clock",
        cluster(nsqd(GOOD, ahead=90.4)),
        Level.WARNING,
        "The clock of nsqd n1:4150 is 90 s ahead.",
    ),
    (
        "clock",
        cluster(nsqd(GOOD, ahead=90.0), lookupds=[lookupd(node(), ahead=90.5)]),
        Level.WARNING,
        "The clock of this machine is 90 s behind.",
    ),
    (
        "versions",
        cluster(
            nsqd(GOOD),
            nsqd(
                GOOD,
                host="n2",
                info=NsqdInfo.parse(
                    {"version": "1.2.1", "broadcast_address": "n2", "tcp_port": 4150}
                ),
            ),
        ),
        Level.HINT,
        "The nsqds have different versions: 1.2.1 at n2:4150; 1.3.0 at n1:4150.",
    ),
    (
        "versions",
        cluster(
            nsqd(GOOD, listed={LOOKUPD: node(), SECOND_LOOKUPD: node()}),
            lookupds=[
                lookupd(node()),
                lookupd(node(), address=SECOND_LOOKUPD, version="1.2.0"),
            ],
        ),
        Level.HINT,
        "The nsqlookupds have different versions",
    ),
    (
        "limits",
        cluster(nsqd(GOOD), nsqd(GOOD, host="n2", limits={"msg_timeout": 30 * SECOND})),
        Level.HINT,
        "--msg-timeout: 30 s at n2:4150; 60 s at n1:4150.",
    ),
    (
        "auth_ignored",
        cluster(nsqd(GOOD, agreed=agreed(auth_ignored=True))),
        Level.HINT,
        "does not ask for AUTH",
    ),
    (
        "no_permission",
        cluster(nsqd(GOOD, agreed=agreed(auth={"permission_count": 0}))),
        Level.ERROR,
        "no permission at all",
    ),
]


@pytest.mark.parametrize(
    ("kind", "seen", "level", "words"),
    [*OF_CHANNELS, *OF_SERVERS],
    ids=[f"{row[0]}-{number}" for number, row in enumerate([*OF_CHANNELS, *OF_SERVERS])],
)
def test_a_finding(kind: str, seen: Snapshot, level: Level, words: str) -> None:
    (found, at, text) = one(seen)
    assert (found, at) == (kind, level)
    assert words in text


IDLE = channel(consumer(), depth=2, message_count=100)


@pytest.mark.parametrize(
    "seen",
    [
        cluster(nsqd(GOOD)),
        cluster(nsqd(GOOD), nsqd(GOOD, host="n2")),
        cluster(nsqd(GOOD, listed={}), lookupds=[]),
        # Consumers at work, and nothing in the queue.
        moving({"in_flight_count": 1}, {"in_flight_count": 1}),
        # A burst that has come between the looks, and that nobody has fetched yet.
        moving({"depth": 2, "message_count": 102}, {}),
        # A single requeue, and old timeouts of a channel that is empty now.
        moving({"requeue_count": 2}, {"requeue_count": 1}),
        cluster(nsqd(topic(channel(consumer(), timeout_count=50)))),
        # RDY 0 while a message of the backoff is on trial, or without any message.
        cluster(nsqd(topic(channel(consumer(0))))),
        # A new topic, which the answer of nsqlookupd does not have yet.
        cluster(nsqd(GOOD, topic(channel(consumer()), name="new"), before=[GOOD])),
        # A development cluster, all of it on this machine.
        cluster(
            nsqd(
                GOOD,
                host="127.0.0.1",
                listed={"http://127.0.0.1:4161": node("127.0.0.1", remote_address="127.0.0.1:6")},
            ),
            lookupds=[lookupd(node("127.0.0.1"), address="http://127.0.0.1:4161")],
        ),
        # Clocks that differ by less than servers tell.
        cluster(nsqd(GOOD, ahead=-1.5)),
    ],
)
def test_all_is_well(seen: Snapshot) -> None:
    assert judge(seen) == []
    diagnosis = Diagnosis(seen, [])
    assert diagnosis.is_good
    assert list(diagnosis.lines())[-1].startswith("All is well: ")


def test_the_worst_comes_first() -> None:
    seen = cluster(
        nsqd(
            topic(
                channel(depth=1, name="a"),
                channel(depth=5, name="b"),
                channel(consumer(), deferred_count=9, name="d"),
                channel(consumer(), paused=True, name="e"),
            )
        )
    )
    found = judge(seen)
    assert [each.where for each in found] == ["t/b", "t/a", "t/e", "t/d"]
    diagnosis = Diagnosis(seen, found)
    assert not diagnosis.is_good
    assert next(diagnosis.lines()) == (
        "error   t/b: No consumer is connected to the channel; 5 messages wait."
    )
    assert list(diagnosis.lines())[-1] == (
        "Something is wrong: 2 errors, 1 warning, 1 hint about 1 nsqd, 1 nsqlookupd, 1 topic,"
        " 4 channels."
    )


def test_a_channel_of_the_question_alone() -> None:
    seen = cluster(
        nsqd(topic(channel(depth=1, name="a"), channel(consumer(), name="b"))),
        topic="t",
        channel="b",
    )
    assert judge(seen) == []


def test_hints_alone_are_nothing_wrong() -> None:
    seen = cluster(nsqd(topic(channel(consumer(), deferred_count=9))))
    diagnosis = Diagnosis(seen, judge(seen))
    assert diagnosis.is_good
    assert diagnosis.json()["findings"][0]["level"] == "hint"


def test_many_findings_are_shown_in_part_and_are_all_in_the_json() -> None:
    channels = [channel(depth=1, name=f"c{number}") for number in range(60)]
    seen = cluster(nsqd(topic(*channels)))
    diagnosis = Diagnosis(seen, judge(seen))
    assert len(list(diagnosis.lines())) == 102
    assert len(diagnosis.json()["findings"]) == 60


def test_a_full_ephemeral_channel_comes_first() -> None:
    full = {"name": "c#ephemeral", "depth": 10000, "in_flight_count": 1, "message_count": 30000}
    found = judge(moving(full, full))
    assert [each.kind for each in found] == ["drops", "no_answers"]
    assert "full at n1:4150, and nsqd throws further messages away" in found[0].wrong


def test_texts_of_others_steer_no_terminal_and_have_bounds() -> None:
    odd = "\x1b[2J" + "x" * 5000
    clients = [consumer(user_agent=f"{number}{odd}", hostname=odd) for number in range(30)]
    seen = cluster(nsqd(topic(channel(*clients)), health=f"NOK - {odd}"))
    lines = list(Diagnosis(seen, judge(seen)).lines())
    assert len(lines) == 5
    assert all(line.isprintable() and len(line) < 3000 for line in lines)
