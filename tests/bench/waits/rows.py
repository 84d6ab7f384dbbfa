"""The rows: what each plays, its goals, and the figures that it makes of handlers' calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.bench.waits import figures
from tests.bench.waits.counting import CountingProxy
from tests.bench.waits.figures import Call, Figure, Goal
from tests.bench.waits.peers import WITHOUT_GROUPS, Peer
from tests.bench.waits.stage import Consumer, Planned, Stage, address, at_rate, http

Found = dict[str, dict[str, Figure]]

# Seconds until the last messages of a steady stream must be handled, and of a stream.
GRACE = 15.0
STREAM = 60.0
DRAIN, FULL = 3.0, 80_000
# A client that dials once a minute would be lucky after 60 s.
AWAY = (50.0, 60.0, 70.0)
OUTAGE, BACK = 100.0, 150.0
# The other clients look every minute, give or take some.
DISCOVERY = 120.0
POISON_IN_A_ROW = 200.0


@dataclass(frozen=True)
class Row:
    """A row of the table. ``alone``: it takes the whole CPU, so it runs by itself."""

    name: str
    title: str
    goals: tuple[Goal, ...]
    play: Callable[[Stage], Found]
    alone: bool = False


def _spread(consumers: Iterable[Consumer], sent: dict[str, list[figures.Sent]]) -> Found:
    """Return the waits of the good messages of each consumer."""
    now = time.time()
    return {
        c.peer.name: figures.spread(
            figures.waits([m for m in sent[c.peer.name] if m.kind != "poison"], c.calls(), now)
        )
        for c in consumers
    }


def _settle(
    stage: Stage, consumers: Sequence[Consumer], sent: dict[str, list[figures.Sent]], seconds: float
) -> None:
    """Wait until all good messages are handled, at most for some seconds."""
    wanted = {name: {m.number for m in all_ if m.kind != "poison"} for name, all_ in sent.items()}

    def settled() -> bool:
        return all(
            wanted[c.peer.name] <= {call.number for call in c.calls() if call.ok} for c in consumers
        )

    stage.wait(settled, seconds)


def _stream(stage: Stage, nsqds: int, speaking: Sequence[int]) -> Found:
    for _ in range(nsqds):
        stage.serve("nsqd")
    consumers = stage.consume_all()
    sent = stage.publish(at_rate(stage.seconds, 5, speaking, stage.name))
    _settle(stage, consumers, sent, GRACE)
    return _spread(consumers, sent)


def three(stage: Stage) -> Found:
    return _stream(stage, 3, range(3))


def ten(stage: Stage) -> Found:
    return _stream(stage, 10, [4])


def topics(stage: Stage) -> Found:
    """Five topics of one consumer with one slot, where the client has such a consumer."""
    stage.peers = [peer for peer in stage.peers if peer.name not in WITHOUT_GROUPS]
    if not stage.peers:
        return {}
    lookupd = stage.serve("nsqlookupd")
    nsqd = stage.serve(
        "nsqd", f"--lookupd-tcp-address={address(lookupd)}", "--broadcast-address=127.0.0.1"
    )
    consumers: list[Consumer] = []
    sent: dict[str, list[figures.Sent]] = {}
    for peer in stage.peers:
        names = [stage.topic(peer, number) for number in range(5)]
        for name in names:
            stage.create(name, [nsqd])
        more = {"lookupds": [http(lookupd)], "together": True}
        consumers.append(stage.consume(peer, names, **more))
    for consumer in consumers:
        stage.wait_subscribed(consumer, [nsqd])
    stage.sleep(2)
    with stage.publishers() as publish:
        began = time.time()
        for at, number, kind in sorted(at_rate(stage.seconds, 5, range(5), stage.name)):
            stage.sleep(began + at - time.time())
            for peer in stage.peers:
                message = publish(stage.topic(peer, number), 0, kind)
                sent.setdefault(peer.name, []).append(message)
    _settle(stage, consumers, sent, GRACE)
    return _spread(consumers, sent)


def drain(stage: Stage) -> Found:
    """Messages of three nsqds with one slot, beside those of one nsqd; one peer after another."""
    for _ in range(3):
        stage.serve("nsqd", "--mem-queue-size=1000000")
    found: Found = {}
    for peer in stage.peers:
        # The quicker of two rounds, by turns: other work on the machine makes a round slow only.
        rounds = [
            [_drained(stage, peer, count, f"{count}-{turn}") for count in (1, 3)]
            for turn in range(2)
        ]
        one, three_ = (max(calls, key=_rate) for calls in zip(*rounds, strict=True))
        begin, end = three_[0].at, three_[-1].at
        found[peer.name] = {
            "messages a second": Figure(_rate(three_)),
            "share of one nsqd's rate": Figure(100 * _rate(three_) / _rate(one)),
            "unevenness": figures.evenness(three_, 3),
            "longest wait for a turn": figures.longest_turn(three_, 3, begin, end),
        }
    return found


def _rate(calls: Sequence[Call]) -> float:
    return len(calls) / (calls[-1].at - calls[0].at)


def _drained(stage: Stage, peer: Peer, count: int, name: str) -> list[Call]:
    """Return the calls of the last seconds in which each of the nsqds had messages."""
    nsqds = stage.nsqds[:count]
    topic = stage.topic(peer, name)
    stage.create(topic, nsqds)
    for number in range(count):
        stage.fill(topic, number, FULL)
    consumer = stage.consume(peer, [topic], nsqds=[address(nsqd) for nsqd in nsqds])
    stage.wait_subscribed(consumer, nsqds)
    stage.sleep(1 + DRAIN)
    calls = sorted(consumer.calls())
    consumer.stop()
    if len(calls) < 2:
        raise RuntimeError(f"{peer.name} handled {len(calls)} messages in {DRAIN} s")
    last = min((c.at for c in calls if c.number == FULL - 1), default=calls[-1].at)
    return [c for c in calls if last - DRAIN <= c.at <= last]


def idle(stage: Stage) -> Found:
    """No messages at ten nsqds; a proxy counts the commands."""
    for _ in range(10):
        stage.serve("nsqd")
    found: Found = {}
    consumers, proxies = [], []
    for peer in stage.peers:
        topic = stage.topic(peer)
        stage.create(topic, stage.nsqds)
        proxy = CountingProxy()
        stage.enter(proxy)
        proxies.append(proxy)
        through = [proxy.before(nsqd.tcp_address) for nsqd in stage.nsqds]
        consumers.append(stage.consume(peer, [topic], nsqds=through))
    for consumer in consumers:
        stage.wait_subscribed(consumer, stage.nsqds)
    # Looks become longer first.
    stage.sleep(15)
    before = [(c.cpu_seconds(), p.counts.total()) for c, p in zip(consumers, proxies, strict=True)]
    stage.sleep(stage.seconds)
    for consumer, proxy, (cpu, commands) in zip(consumers, proxies, before, strict=True):
        found[consumer.peer.name] = {
            "CPU": Figure(100 * (consumer.cpu_seconds() - cpu) / stage.seconds),
            "commands a second": Figure((proxy.counts.total() - commands) / stage.seconds),
        }
    return found


def _first(stage: Stage, consumers: Sequence[Consumer], made: dict[str, float]) -> Found:
    """Return the first call's time after its topic was made, the median and the longest."""

    def first() -> dict[str, float]:
        at: dict[str, float] = {}
        for call in (call for c in consumers for call in c.calls()):
            at.setdefault(call.topic, call.at)
        return at

    stage.wait(lambda: first().keys() >= made.keys(), DISCOVERY)
    at, now = first(), time.time()
    found: Found = {}
    for peer in stage.peers:
        waits = [
            Figure(at[topic] - made[topic]) if topic in at else Figure(now - made[topic], True)
            for consumer in consumers
            if consumer.peer is peer
            for topic in consumer.order.topics
        ]
        found[peer.name] = {
            "first message, median": figures.part(waits, 0.5),
            "first message, longest": figures.part(waits, 1.0),
        }
    return found


def later(stage: Stage) -> Found:
    """Consumers of three topics start; the topics are made 10, 17 and 24 s later."""
    lookupd = stage.serve("nsqlookupd")
    stage.serve("nsqd", f"--lookupd-tcp-address={address(lookupd)}", *_LOOPBACK)
    names = {peer.name: [stage.topic(peer, number) for number in range(3)] for peer in stage.peers}
    consumers = [
        stage.consume(peer, names[peer.name], lookupds=[http(lookupd)]) for peer in stage.peers
    ]
    made: dict[str, float] = {}
    stage.sleep(3)
    with stage.publishers() as publish:
        for number in range(3):
            stage.sleep(7)
            for peer in stage.peers:
                made[names[peer.name][number]] = time.time()
                publish(names[peer.name][number], 0, "good")
    return _first(stage, consumers, made)


def joins(stage: Stage) -> Found:
    """Three topics are known at one nsqd; another nsqd gets them 10, 17 and 24 s later."""
    lookupd = stage.serve("nsqlookupd")
    flags = (f"--lookupd-tcp-address={address(lookupd)}", *_LOOPBACK)
    first = stage.serve("nsqd", *flags)
    stage.serve("nsqd", *flags)
    consumers = []
    for peer in stage.peers:
        names = [stage.topic(peer, number) for number in range(3)]
        for name in names:
            stage.create(name, [first])
        consumers.append(stage.consume(peer, names, lookupds=[http(lookupd)]))
    for consumer in consumers:
        stage.wait_subscribed(consumer, [first])
    made: dict[str, float] = {}
    stage.sleep(3)
    with stage.publishers() as publish:
        for number in range(3):
            stage.sleep(7)
            for consumer in consumers:
                topic = consumer.order.topics[number]
                made[topic] = time.time()
                publish(topic, 1, "good")
    return _first(stage, consumers, made)


_LOOPBACK = ("--broadcast-address=127.0.0.1",)


def away(stage: Stage) -> Found:
    """Three nsqds are killed, each with a consumer of its own; they return one after another."""
    consumers: list[Consumer] = []
    for number in range(len(AWAY)):
        nsqd = stage.serve("nsqd")
        for peer in stage.peers:
            stage.create(stage.topic(peer, number), [nsqd])
            topics_ = [stage.topic(peer, number)]
            consumers.append(stage.consume(peer, topics_, nsqds=[address(nsqd)]))
    for index, consumer in enumerate(consumers):
        stage.wait_subscribed(consumer, [stage.nsqds[index // len(stage.peers)]])
    for nsqd in stage.nsqds:
        nsqd.kill()
    began, made = time.time(), {}
    for number, nsqd in enumerate(stage.nsqds):
        stage.sleep(began + AWAY[number] - time.time())
        nsqd.start()
        back = time.time()
        for peer in stage.peers:
            topic = stage.topic(peer, number)
            # The topic is on the nsqd's disk, so the message waits for the consumer.
            stage.fill(topic, number, 1)
            made[topic] = back
    return _first(stage, consumers, made)


def _poison(stage: Stage, one_in: int) -> Found:
    stage.serve("nsqd")
    consumers = stage.consume_all()
    plan = sorted(at_rate(stage.seconds, 20, [0], stage.name))
    mixed = [
        planned._replace(kind="poison") if index % one_in == one_in - 1 else planned
        for index, planned in enumerate(plan)
    ]
    sent = stage.publish(mixed)
    _settle(stage, consumers, sent, GRACE)
    return _spread(consumers, sent)


def poison_2(stage: Stage) -> Found:
    return _poison(stage, 50)


def poison_20(stage: Stage) -> Found:
    return _poison(stage, 5)


def four(stage: Stage, requeue_delay: float | None = None) -> Found:
    """Four messages in a row fail for ever; 4 s later the first of ten good ones comes."""
    stage.serve("nsqd")
    consumers = stage.consume_all(requeue_delay=requeue_delay)
    good = [Planned(4.0 + n, 0, "good") for n in range(10)]
    sent = stage.publish([*(Planned(0.001 * n, 0, "poison") for n in range(4)), *good])
    _settle(stage, consumers, sent, POISON_IN_A_ROW)
    found = _spread(consumers, sent)
    now = time.time()
    for c in consumers:
        waits = figures.waits([m for m in sent[c.peer.name] if m.kind == "good"], c.calls(), now)
        found[c.peer.name]["longest"] = figures.part(waits, 1.0)
    return found


def four_quick(stage: Stage) -> Found:
    return four(stage, requeue_delay=1.0)


def burst(stage: Stage) -> Found:
    """200 messages that fail for ever come at once, within 20 good ones a second."""
    stage.serve("nsqd")
    consumers = stage.consume_all()
    plan = [*at_rate(stage.seconds, 20, [0], stage.name), *[Planned(5.0, 0, "poison")] * 200]
    sent = stage.publish(plan)
    _settle(stage, consumers, sent, GRACE)
    return _spread(consumers, sent)


def _switched(
    stage: Stage, moments: Sequence[float], seconds: float
) -> tuple[list[Consumer], dict[str, list[figures.Sent]], float]:
    """Publish 20 messages a second; the handlers begin and end to fail at the moments."""
    stage.serve("nsqd")
    switch = stage.folder / "switch"
    consumers = stage.consume_all(switch=str(switch))
    with ThreadPoolExecutor(1) as pool:
        began = time.time()
        published = pool.submit(stage.publish, at_rate(seconds, 20, [0], stage.name))
        for moment in moments:
            stage.sleep(began + moment - time.time())
            if switch.exists():
                switch.unlink()
            else:
                switch.touch()
        return consumers, published.result(), began


def outage(stage: Stage) -> Found:
    """Each call fails for 100 s; after a longer outage, pauses of two minutes end later."""
    begin = 10.0
    consumers, _, began = _switched(stage, (begin, begin + OUTAGE), begin + OUTAGE + 40)
    end = began + begin + OUTAGE

    def found() -> Found:
        return {c.peer.name: figures.outage(c.calls(), began + begin, end, 20) for c in consumers}

    stage.wait(
        lambda: not any(mine["full rate after"].more for mine in found().values()),
        end + BACK - time.time(),
    )
    shown = found()
    for mine in shown.values():
        if mine["full rate after"].more:
            mine["full rate after"] = Figure(time.time() - end, True)
    return shown


FLAPS = tuple(5.0 * n for n in range(1, 13))


def flapping(stage: Stage) -> Found:
    """The handler fails for 5 s and works for 5 s, by turns, for a minute."""
    consumers, sent, began = _switched(stage, FLAPS, 70)
    _settle(stage, consumers, sent, 60)
    found = _spread(consumers, sent)
    for consumer in consumers:
        calls = consumer.calls()
        found[consumer.peer.name] |= {
            "failed calls": Figure(sum(not call.ok for call in calls)),
            "longest stop": figures.longest_stop(calls, began, began + 70),
        }
    return found


def half(stage: Stage) -> Found:
    """Each call fails with a chance of a half, by message and attempt, for a minute."""
    stage.serve("nsqd")
    consumers = stage.consume_all()
    began = time.time()
    plan = at_rate(stage.seconds, 20, [0], stage.name)
    sent = stage.publish(planned._replace(kind="half") for planned in plan)
    found: Found = {}
    for consumer in consumers:
        calls = consumer.calls()
        found[consumer.peer.name] = {
            "failed calls": Figure(sum(not call.ok for call in calls)),
            "handled calls": Figure(sum(call.ok for call in calls)),
            "longest stop": figures.longest_stop(calls, began, time.time()),
        }
    assert sent
    return found


def _three_goals(median: float | None, most: float | None) -> tuple[Goal, ...]:
    return (
        Goal("median", "s", median),
        Goal("99 %", "s", most),
        Goal("handled", "%", 100.0, least=True),
    )


_FIRST = ("first message, median", "first message, longest")
_FOUR = (
    Goal("median"),
    Goal("longest", "s", 5.0),
    Goal("handled", "%", 100.0, least=True),
)

ROWS = (
    Row("drain", "three full nsqds, one slot", (
        Goal("messages a second", ""),
        Goal("share of one nsqd's rate", "%", 50.0, least=True),
        Goal("unevenness", "%", 20.0),
        # A quarter of a second for each nsqd.
        Goal("longest wait for a turn", "s", 0.75),
    ), drain, alone=True),
    Row("three", "three nsqds, 5 messages/s each", _three_goals(0.060, 0.250), three),
    Row("ten", "ten nsqds, one with 5 messages/s", _three_goals(None, 1.0), ten),
    Row("topics", "five topics with one slot, 5 messages/s each", _three_goals(None, 0.5), topics),
    Row("idle", "ten nsqds without messages", (
        Goal("CPU", "% of a core", 0.5), Goal("commands a second", ""),
    ), idle),
    Row("later", "a consumer that starts before its topic exists", (
        Goal(_FIRST[0]), Goal(_FIRST[1], "s", 4.0),
    ), later),
    # The interval of 15 s, and the half of its jitter of 30 %.
    Row("joins", "an nsqd that joins with the topic", (
        Goal(_FIRST[0]), Goal(_FIRST[1], "s", 17.3),
    ), joins),
    Row("away", "a directly addressed nsqd that was away for 50 to 70 s", (
        Goal(_FIRST[0]), Goal(_FIRST[1], "s", 5.0),
    ), away),
    Row("poison-2", "2 % of 20 messages/s fail for ever: the others", _three_goals(None, 0.1),
        poison_2),
    Row("poison-20", "20 % of 20 messages/s fail for ever: the others", _three_goals(None, 0.1),
        poison_20),
    Row("four", "four messages in a row fail for ever: the next ones", _FOUR, four),
    Row("four-quick", "the same with a requeue delay of 1 s", _FOUR, four_quick),
    # An outage to every client: the others wait until the burst has had its attempts.
    Row("burst", "200 messages of one burst fail for ever: 20 others/s", (
        Goal("median"), Goal("99 %"), Goal("handled", "%"),
    ), burst),
    Row("outage", f"the handler fails for {OUTAGE:.0f} s, 20 messages/s", (
        Goal("calls before the first pause", ""),
        Goal("calls between two pauses", "", 1.0),
        Goal("longest pause"),
        Goal("full rate after", "s", 30.0),
    ), outage),
    Row("flapping", "the handler fails for 5 s and works for 5 s by turns, 20 messages/s", (
        # A rule that tells outages from poison needs more failures than one.
        Goal("failed calls", ""), Goal("longest stop", "s", as_before=0.2), Goal("median"),
        Goal("99 %"),
        # A failed attempt comes again after a minute and a half.
        Goal("handled", "%"),
    ), flapping),
    Row("half", "half of the calls fail, 20 messages/s", (
        # A minute is too short for a rate: ``tests.support.pause_figures`` has an hour.
        Goal("failed calls", ""), Goal("handled calls", ""), Goal("longest stop", "s", 30.0),
    ), half),
)  # fmt: skip


def select(names: Sequence[str]) -> tuple[Row, ...]:
    """Return the rows by these names, all without names; ValueError for an unknown name."""
    known = [row.name for row in ROWS]
    for name in names:
        if name not in known:
            raise ValueError(f"no row is called {name}; there are {', '.join(known)}")
    return tuple(row for row in ROWS if not names or row.name in names)


def play(
    row: Row, peers: Sequence[Peer], cancelled: threading.Event, seconds: float = STREAM
) -> Found:
    """Run a row on servers of its own, until its end or until ``cancelled`` is set."""
    with Stage(row.name, peers, cancelled, seconds) as stage:
        return row.play(stage)
