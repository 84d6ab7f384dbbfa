"""What happens in a history, drawn from its seed: servers, clients, what they do, and the faults.

A plan is plain data, so that a part of it can be left out when a failure is to be shown shorter.

There are three worlds. "cluster": minutes of servers that fail. "race": seconds in which many
threads do the same thing at the same moment. "day": 24 hours.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["Fault", "NsqdPlan", "Plan", "ReaderPlan", "WriterPlan", "draw"]

TOPICS = ("orders", "mails")


@dataclass(frozen=True)
class NsqdPlan:
    """One nsqd. ``has_disk``: what does not fit into memory, and a clean stop, go to it."""

    options: dict[str, Any]
    has_disk: bool
    rate: float = 1.0
    wall_offset: float = 0.0
    work: float = 50e-6


@dataclass(frozen=True)
class WriterPlan:
    """One Writer and its threads. ``keywords`` are the Writer's.

    ``pause``: seconds between two publishes of a thread, on the average. After ``messages`` of them
    the thread ends. ``bursts``: all threads publish at the same moment, so far apart.
    """

    keywords: dict[str, Any]
    threads: int
    topic: str
    kinds: tuple[str, ...]
    pause: float
    messages: int
    size: int
    uses_lookupd: bool = False
    begins: float = 0.0
    bursts: float = 0.0
    # Each is closed at its end, or before.
    closes_at: float | None = None


@dataclass(frozen=True)
class ReaderPlan:
    """One Reader. ``form``: handler, pull, or topics: a TopicGroup. ``work``: seconds of a message.

    ``group``: the number of the ReaderGroup that it is in. ``kills``: of the handlers, which end
    the thread that runs them. ``stops_after``: so many messages; then the handler stops it.
    """

    keywords: dict[str, Any]
    topic: str
    channel: str
    form: str
    work: float
    fails: float = 0.0
    slow: float = 0.0
    detaches: float = 0.0
    forgets: float = 0.0
    kills: float = 0.0
    group: int | None = None
    uses_lookupd: bool = False
    begins: float = 0.0
    stops_at: float | None = None
    stop_timeout: float = 30.0
    stops_after: int | None = None
    # Seconds in which all that the handler does fails: from, to.
    down: tuple[float, float] | None = None
    # (when, what, argument): pause, resume, max_in_flight, add_nsqd, remove_nsqd
    changes: tuple[tuple[float, str, Any], ...] = ()

    def is_down(self, seconds: float) -> bool:
        """Return True in the outage of what the handler needs."""
        return self.down is not None and self.down[0] <= seconds < self.down[1]


@dataclass(frozen=True)
class Fault:
    """``kind`` at ``when`` seconds, to ``target``; ``seconds``: how long, where it has an end."""

    when: float
    kind: str
    target: int
    seconds: float = 0.0
    number: float = 0.0


@dataclass(frozen=True)
class Plan:
    """``name``: as ``draw`` takes it. ``chance``: what the scheduler and the network draw from.

    ``turn_seconds``: how long a task computes each time. ``ends_badly``: servers are silent while
    all is stopped at the end. ``collects``: garbage is collected now and then.
    """

    name: str
    chance: str
    seconds: float
    preempts: bool
    gap: float
    nsqds: tuple[NsqdPlan, ...]
    lookupds: int
    writers: tuple[WriterPlan, ...]
    readers: tuple[ReaderPlan, ...]
    faults: tuple[Fault, ...]
    link: dict[str, Any] = field(default_factory=dict)
    turn_seconds: float = 4e-6
    ends_badly: bool = False
    collects: bool = False

    @property
    def is_race(self) -> bool:
        return self.name.startswith("race")

    def without(self, part: str, index: int) -> Plan:
        """The same, less one of its ``faults``, ``writers`` or ``readers``."""
        values = getattr(self, part)
        left = (*values[:index], *values[index + 1 :])
        changed: Plan = replace(self, **{part: left})  # type: ignore[arg-type]
        return changed

    def instead(self, part: str, index: int, value: Any) -> Plan:
        """The same, with another one of its ``writers`` or ``readers``."""
        values = getattr(self, part)
        new = (*values[:index], value, *values[index + 1 :])
        changed: Plan = replace(self, **{part: new})
        return changed


def draw(name: str) -> Plan:
    """The plan of a name: ``17``, ``race:17`` or ``day:17``.

    With ``+3`` after it the plan is the same, and what the scheduler and the network draw is not.
    """
    drawn, _, again = name.partition("+")
    world, _, seed = drawn.rpartition(":")
    plan = {"": _draw_cluster, "race": _draw_race, "day": _draw_day}[world](int(seed))
    return replace(plan, name=name, chance=f"{plan.chance}+{again}") if again else plan


def _draw_cluster(seed: int) -> Plan:
    """Half of the histories are quiet worlds with few faults."""
    rng = random.Random(f"plan {seed}")
    seconds = rng.choice((20.0, 60.0, 60.0, 200.0))
    nsqd_count = rng.choice((1, 1, 2, 2, 3, 5))
    lookupds = rng.choice((0, 1, 1, 2))
    msg_timeout = rng.choice((2.0, 10.0, 60.0))
    nsqds = tuple(_nsqd(rng, msg_timeout) for _ in range(nsqd_count))
    writers = tuple(_writer(rng, seconds, lookupds) for _ in range(rng.choice((1, 1, 2))))
    later = random.Random(f"later writers {seed}")
    if later.random() < 0.1:
        writers = tuple(
            replace(writer, threads=8, bursts=later.choice((0.1, 6.0))) for writer in writers
        )
    readers = tuple(_reader(rng, seconds, lookupds) for _ in range(rng.choice((0, 1, 1, 2, 3))))
    fault_count = rng.choice((0, 0, 1, 2, 4, 8))
    drawn = [_fault(rng, seconds, nsqd_count, lookupds) for _ in range(fault_count)]
    drawn += _later_faults(seed, seconds, nsqd_count)
    faults = sorted(drawn, key=lambda fault: fault.when)
    plan = Plan(
        name=f"{seed}",
        chance=f"{seed}",
        seconds=seconds,
        preempts=rng.random() < 0.7,
        gap=rng.choice((2.0, 8.0, 40.0, 400.0)),
        nsqds=nsqds,
        lookupds=lookupds,
        writers=writers,
        readers=_later_readers(seed, readers, lookupds),
        faults=tuple(faults),
        link=_link(rng),
        collects=seed % 4 == 0,
    )
    later = random.Random(f"later end {seed}")
    return replace(plan, ends_badly=later.random() < 0.15)


def _draw_race(seed: int) -> Plan:
    """Seconds, on quick links; half of them have no fault."""
    rng = random.Random(f"race {seed}")
    seconds = rng.choice((1.0, 3.0, 10.0))
    nsqd_count = rng.choice((1, 1, 2, 3))
    nsqds = tuple(
        replace(_nsqd(rng, 10.0), rate=1.0, work=rng.choice((5e-6, 20e-6, 500e-6)))
        for _ in range(nsqd_count)
    )
    writers = []
    for _ in range(rng.choice((1, 1, 2))):
        writer = _writer(rng, seconds, 0)
        writers.append(
            replace(
                writer,
                keywords={**writer.keywords, "publish_timeout": 5.0},
                kinds=rng.choice((writer.kinds, writer.kinds, ("many",))),
                threads=rng.choice((1, 2, 4, 8, 16)),
                bursts=rng.choice((0.0, 0.002, 0.1, 0.1)),
                pause=rng.choice((1e-5, 0.001, 0.01)),
                messages=rng.choice((10, 40, 100)),
                size=40,
                begins=0.0,
            )
        )
    readers = []
    for _ in range(rng.choice((0, 1, 1, 2))):
        reader = _reader(rng, seconds, 0)
        readers.append(
            replace(
                reader,
                keywords={
                    **reader.keywords,
                    "max_in_flight": rng.choice((1, 2, 3, 20, 200)),
                    "concurrency": rng.choice((1, 2, 4)),
                    "low_rdy_idle_timeout": 0.2,
                    "low_rdy_timeout": 0.5,
                },
                work=rng.choice((0.0, 0.0003, 0.002)),
                slow=rng.choice((0.0, 0.01, 0.05)),
                fails=rng.choice((0.0, 0.0, 0.05)),
                begins=0.0,
                stop_timeout=rng.choice((0.0, 0.0, 1.0)),
                kills=rng.choice((0.0, 0.0, 0.0, 0.02)),
                stops_after=rng.choice((None, None, None, 10, 100)),
            )
        )
    kinds = ["kill", "freeze", "reset", "power", "threads", "exception", "exception", "fork"]
    faults = [
        Fault(
            rng.uniform(0.01, seconds),
            rng.choice(kinds),
            rng.randrange(nsqd_count),
            rng.choice((0.001, 0.05, 0.5)),
            rng.random(),
        )
        for _ in range(rng.choice((0, 0, 1, 3)))
    ]
    plan = Plan(
        name=f"race:{seed}",
        chance=f"race {seed}",
        seconds=seconds,
        preempts=rng.random() < 0.8,
        gap=rng.choice((1.5, 3.0, 8.0, 20.0)),
        nsqds=nsqds,
        lookupds=0,
        writers=tuple(writers),
        readers=tuple(readers),
        faults=tuple(sorted(faults, key=lambda fault: fault.when)),
        link={"latency": 0.00005, "jitter": 0.0001, "window": 1 << 20, "segment": 1 << 20,
              "loss": 0.0},
        turn_seconds=rng.choice((4e-6, 4e-6, 2e-5, 1e-4)),
        collects=seed % 4 == 0,
    )  # fmt: skip
    kind = rng.random()
    if kind < 0.1:
        return _with_bursts(plan, rng)
    return _with_rests(plan) if kind < 0.2 else plan


def _with_rests(plan: Plan) -> Plan:
    """Many publish at the same moment, and then nobody for longer than a lock may be held."""
    writer = replace(
        plan.writers[0], threads=16, kinds=("publish",), bursts=6.0, messages=20, closes_at=None
    )
    return replace(
        plan, seconds=120.0, gap=1.5, preempts=True, nsqds=plan.nsqds[:1], writers=(writer,),
        readers=(), faults=(),
    )  # fmt: skip


def _with_bursts(plan: Plan, rng: random.Random) -> Plan:
    """One MPUB each 0.1 s, as often as a Reader looks after its messages; few handlers are slow."""
    writer = replace(
        plan.writers[0], threads=1, kinds=("many",), bursts=0.1, messages=100, closes_at=None
    )
    reader = _reader(rng, 10.0, 0)
    keywords = {**reader.keywords, "latency": "throughput", "max_in_flight": 100, "concurrency": 1}
    reader = replace(
        reader, topic=writer.topic, form="handler", keywords=keywords, work=0.0, fails=0.0,
        slow=0.01, detaches=0.0, begins=0.0, stops_at=None, changes=(),
    )  # fmt: skip
    return replace(
        plan, seconds=10.0, nsqds=plan.nsqds[:1], writers=(writer,), readers=(reader,), faults=()
    )


def _draw_day(seed: int) -> Plan:
    """24 hours of three nsqds and ten clients, with a fault each half hour."""
    rng = random.Random(f"day {seed}")
    seconds = 86400.0
    nsqds = tuple(replace(_nsqd(rng, 60.0), work=100e-6) for _ in range(3))
    writers = tuple(
        replace(_writer(rng, seconds, 1), pause=60.0, messages=10_000, threads=2, begins=0.0,
                closes_at=None, size=200)
        for _ in range(5)
    )  # fmt: skip
    readers = tuple(
        replace(_reader(rng, seconds, 1), begins=0.0, stops_at=None, work=0.02, slow=0.01)
        for _ in range(5)
    )
    readers = tuple(
        replace(
            reader,
            keywords={
                **reader.keywords,
                "heartbeat_interval": 30.0,
                "lookupd_poll_interval": 60.0,
                "low_rdy_idle_timeout": 10.0,
            },
        )
        for reader in readers
    )
    faults = sorted((_fault(rng, seconds, 3, 1) for _ in range(48)), key=lambda fault: fault.when)
    link = {"latency": 0.0005, "jitter": 0.0005, "window": 65536, "segment": 1 << 20, "loss": 0.0}
    return Plan(
        f"day:{seed}", f"{seed}", seconds, True, 40.0, nsqds, 1, writers, readers, tuple(faults),
        link, collects=seed % 4 == 0,
    )  # fmt: skip


def _link(rng: random.Random) -> dict[str, Any]:
    return {
        "latency": rng.choice((0.00005, 0.0002, 0.001, 0.02)),
        "jitter": rng.choice((0.0, 0.0001, 0.002)),
        "window": rng.choice((1500, 16384, 65536, 65536, 1 << 20)),
        "segment": rng.choice((20, 100, 1448, 1 << 20, 1 << 20)),
        "loss": rng.choice((0.0, 0.0, 0.0, 0.01)),
    }


def _nsqd(rng: random.Random, msg_timeout: float) -> NsqdPlan:
    return NsqdPlan(
        options={
            "msg_timeout": msg_timeout,
            "mem_queue_size": rng.choice((0, 5, 10_000, 10_000)),
            "max_rdy_count": rng.choice((1, 10, 2500, 2500)),
            "sync_every": rng.choice((1, 2500)),
            "max_bytes_per_file": rng.choice((1000, 100_000_000)),
        },
        has_disk=rng.random() < 0.5,
        rate=rng.choice((1.0, 1.0, 0.99, 1.01)),
        wall_offset=rng.choice((0.0, 0.0, -3600.0, 5.0)),
        work=rng.choice((20e-6, 100e-6, 0.005)),
    )


def _writer(rng: random.Random, seconds: float, lookupds: int) -> WriterPlan:
    kinds = rng.choice(
        (("publish",), ("publish",), ("publish", "defer"), ("publish", "many"), ("async",),
         ("publish", "many", "async", "defer"))
    )  # fmt: skip
    threads = rng.choice((1, 1, 2, 4, 8))
    messages = rng.choice((10, 100, 400, 400))
    return WriterPlan(
        keywords={
            "publish_timeout": rng.choice((0.2, 1.0, 5.0)),
            "retry_unknown": rng.random() < 0.2,
            "outage": rng.choice(("fail", "wait")),
            "policy": rng.choice(("round_robin", "failover")),
            "heartbeat_interval": rng.choice((1.0, 5.0, 30.0)),
        },
        threads=threads,
        topic=rng.choice(TOPICS),
        kinds=kinds,
        pause=rng.choice((0.0005, 0.01, 0.2, 2.0)),
        messages=messages,
        size=rng.choice((40, 40, 200, 3000)),
        uses_lookupd=bool(lookupds) and rng.random() < 0.3,
        begins=rng.choice((0.0, 0.0, 3.0)),
        closes_at=rng.uniform(1.0, seconds) if rng.random() < 0.2 else None,
    )


def _reader(rng: random.Random, seconds: float, lookupds: int) -> ReaderPlan:
    auto_touch = rng.random() < 0.2
    changes: list[tuple[float, str, Any]] = []
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        when = rng.uniform(0.0, seconds)
        kind = rng.choice(("pause", "max_in_flight", "stats", "remove_nsqd"))
        if kind == "pause":
            changes += [(when, "pause", None), (when + rng.uniform(0.1, 5.0), "resume", None)]
        elif kind == "max_in_flight":
            changes.append((when, kind, rng.choice((0, 1, 3, 50))))
            changes.append((when + rng.uniform(0.5, 5.0), kind, rng.choice((1, 3, 50))))
        elif kind == "remove_nsqd":
            changes += [(when, kind, 0), (when + rng.uniform(0.1, 5.0), "add_nsqd", 0)]
        else:
            changes.append((when, kind, None))
    # Drawn aside, so that the rest of a seed means what it meant.
    aside = random.Random(f"outage {changes} {seconds} {lookupds} {auto_touch}")
    begin = aside.uniform(0.0, seconds)
    return ReaderPlan(
        down=(begin, begin + aside.uniform(1.0, 40.0)) if aside.random() < 0.3 else None,
        keywords={
            "backoff": aside.choice((True, True, "every_failure")),
            "max_in_flight": rng.choice((1, 1, 2, 5, 40, 1000)),
            "concurrency": rng.choice((1, 1, 2, 4)),
            "max_attempts": rng.choice((0, 2, 5)),
            "requeue_delay": rng.choice((0.0, 0.1, 1.0)),
            "max_requeue_delay": rng.choice((0.5, 20.0)),
            "max_backoff_duration": rng.choice((0.0, 2.0, 128.0)),
            "backoff_multiplier": rng.choice((0.01, 0.2)),
            "low_rdy_idle_timeout": rng.choice((0.5, 10.0)),
            "low_rdy_timeout": rng.choice((1.0, 30.0)),
            "latency": rng.choice(("adaptive", "adaptive", "throughput")),
            "auto_touch": auto_touch,
            "lookupd_poll_interval": rng.choice((1.0, 10.0)),
            "heartbeat_interval": rng.choice((1.0, 5.0, 30.0)),
            "on_giving_up": rng.choice((None, "discard")),
        },
        topic=rng.choice(TOPICS),
        channel=rng.choice(("c", "c", "d")),
        form=rng.choice(("handler", "handler", "handler", "pull")),
        work=rng.choice((0.0, 0.001, 0.02, 0.3)),
        fails=rng.choice((0.0, 0.0, 0.02, 0.3)),
        slow=rng.choice((0.0, 0.0, 0.01)),
        detaches=rng.choice((0.0, 0.0, 0.2)),
        # What is touched for ever is not sent again.
        forgets=0.0 if auto_touch else rng.choice((0.0, 0.0, 0.02)),
        uses_lookupd=bool(lookupds) and rng.random() < 0.5,
        begins=rng.choice((0.0, 0.0, 2.0)),
        stops_at=rng.uniform(1.0, seconds) if rng.random() < 0.4 else None,
        stop_timeout=rng.choice((0.0, 1.0, 30.0)),
        changes=tuple(sorted(changes, key=lambda change: change[0])),
    )


def _later_readers(
    seed: int, readers: tuple[ReaderPlan, ...], lookupds: int
) -> tuple[ReaderPlan, ...]:
    """What Readers learned later. A chance of their own leaves the older seeds what they were."""
    rng = random.Random(f"topics {seed}")
    if readers and lookupds and rng.random() < 0.15:
        first = replace(
            readers[0], form="topics", group=1, channel="c", uses_lookupd=True, changes=()
        )
        return (first,)
    rng = random.Random(f"later lookupds {seed}")
    if lookupds and rng.random() < 0.2:
        when = rng.uniform(0.1, 15.0)
        asked = ((when, "remove_lookupd", 0), (when + rng.uniform(0.01, 5.0), "add_lookupd", 0))
        readers = tuple(
            replace(reader, changes=(*reader.changes, *asked)) if reader.uses_lookupd else reader
            for reader in readers
        )
    rng = random.Random(f"later readers {seed}")
    if len(readers) < 2 or rng.random() > 0.3:
        return readers
    first = replace(readers[0], form="handler", channel="c")
    return tuple(
        replace(
            reader,
            form="handler",
            group=0,
            topic=TOPICS[number % 2],
            begins=first.begins,
            stops_at=first.stops_at,
            stop_timeout=first.stop_timeout,
            changes=(),
        )
        for number, reader in enumerate((first, *readers[1:]))
    )


def _later_faults(seed: int, seconds: float, nsqds: int) -> list[Fault]:
    """Kinds that came later, likewise."""
    rng = random.Random(f"later {seed}")
    faults = []
    if rng.random() <= 0.06:
        faults.append(Fault(rng.uniform(0.1, seconds * 0.9), "flood", rng.randrange(nsqds)))
    while rng.random() < 0.2:
        kind = rng.choice(
            ("exception", "exception", "fork", "garbage", "full disk", "clock", "fewer RDY",
             "kill without threads")
        )  # fmt: skip
        when, target = rng.uniform(0.1, seconds * 0.9), rng.randrange(nsqds)
        length, number = rng.choice((0.05, 0.5, 3.0)), rng.random()
        if kind == "kill without threads":
            # It is dialled again while no thread can be started.
            faults.append(Fault(when, "threads", 0, length + 2.0))
            kind = "kill"
        faults.append(Fault(when, kind, target, length, number))
    return faults


def _fault(rng: random.Random, seconds: float, nsqds: int, lookupds: int) -> Fault:
    kinds = ["kill", "stop", "freeze", "cut", "cut one way", "power", "reset", "slow", "pause"]
    kinds.append("threads")
    if lookupds:
        kinds += ["lookupd kill", "lookupd drips", "lookupd lies"]
    kind = rng.choice(kinds)
    return Fault(
        when=rng.uniform(0.1, seconds * 0.9),
        kind=kind,
        target=rng.randrange(lookupds if kind.startswith("lookupd") else nsqds),
        seconds=rng.choice((0.001, 0.05, 0.5, 3.0, 12.0)),
        number=rng.random(),
    )
