"""What is done to the cluster and to the clients, by name: each a function of the Field.

A scenario takes a few seconds in its short form and leaves the cluster whole.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import NamedTuple

from tests.chaos.cluster import CHANNEL, HEARTBEAT
from tests.chaos.field import Field
from tests.chaos.liar import LIES
from tests.support.faultproxy import DOWN, UP, Trouble, rough

KILLABLE_SECONDS = 40.0
IDLE_SECONDS = 60.0
STOP_SECONDS = 3 * HEARTBEAT + 0.2
Act = Callable[[Field], None]


class Scenario(NamedTuple):
    """``needs`` and ``kills``: see field.Plan."""

    name: str
    about: str
    act: Act
    needs: str = ""
    kills: bool = False


SCENARIOS: dict[str, Scenario] = {}


def scenario(name: str, needs: str = "", kills: bool = False) -> Callable[[Act], Act]:
    def register(act: Act) -> Act:
        about = (act.__doc__ or "").strip().splitlines()[0]
        SCENARIOS[name] = Scenario(name, about, act, needs, kills)
        return act

    return register


# -- the network ---------------------------------------------------------------------------------


@scenario("network")
def network(field: Field) -> None:
    """Cuts at a byte, RST, stalls, single bytes and half open links, on every connection."""
    for _ in range(3 if field.short else 6):
        for nsqd in field.nsqds:
            field.cluster.rough(nsqd, rough)
        field.sleep(1.0, 2.0)
        nsqd = field.chance.choice(field.nsqds)
        field.cluster.cut(nsqd, reset=field.chance.random() < 0.5)
    for nsqd in field.nsqds:
        field.cluster.rough(nsqd, None)
    field.sleep(0.5)


@scenario("cuts")
def cuts(field: Field) -> None:
    """Every connection ends, again and again, by a close or by RST."""
    for _ in range(3 if field.short else 8):
        for nsqd in field.nsqds:
            field.cluster.cut(nsqd, reset=field.chance.random() < 0.5)
        field.sleep(0.5, 1.0)


@scenario("torn")
def torn(field: Field) -> None:
    """Publishes pile up, then nsqd gets a part of them and answers that part."""
    for _ in range(4 if field.short else 10):
        for nsqd in field.nsqds:
            nsqd.proxy.order(Trouble(UP, "stall", 0, 0.5))
            nsqd.proxy.order(Trouble(UP, "drop", field.chance.randrange(100, 60_000)))
            if field.chance.random() < 0.3:
                nsqd.proxy.order(Trouble(DOWN, "drip", 0, 60))
        field.order("burst", count=30)
        field.sleep(1.2)
        for nsqd in field.nsqds:
            field.cluster.cut(nsqd, reset=False)
        field.sleep(0.3, 0.6)


@scenario("partition", needs="spaces")
def partition(field: Field) -> None:
    """Network namespaces whose wire is cut without a word: one nsqd, two, then all of them."""
    rounds = (1, 3) if field.short else (1, 2, 3)
    for count in rounds:
        cut = field.chance.sample(field.nsqds, count)
        with field.cluster.fault("partition", *cut):
            for nsqd in cut:
                field.cluster.spaces[nsqd.number].cut()
            field.sleep(STOP_SECONDS if count == 1 else 1.5)
            for nsqd in cut:
                field.cluster.spaces[nsqd.number].heal()
        field.sleep(1.0)


# -- nsqds ---------------------------------------------------------------------------------------


@scenario("kill-each", kills=True)
def kill_each(field: Field) -> None:
    """SIGKILL and restart of each nsqd in turn."""
    for nsqd in field.chance.sample(field.nsqds, len(field.nsqds)):
        if field.cluster.may_be_killed(nsqd, KILLABLE_SECONDS):
            field.cluster.kill(nsqd)
            field.sleep(0.1, 0.8)
            nsqd.server.start()
            field.sleep(0.5, 1.0)


@scenario("kill-all", kills=True)
def kill_all(field: Field) -> None:
    """SIGKILL of all nsqds at once, and their restart one by one."""
    if all(field.cluster.may_be_killed(nsqd, KILLABLE_SECONDS) for nsqd in field.nsqds):
        for nsqd in field.nsqds:
            field.cluster.kill(nsqd)
        field.sleep(0.2, 1.0)
        for nsqd in field.nsqds:
            nsqd.server.start()
            field.sleep(0.1, 0.5)
    field.sleep(1.0)


@scenario("restart")
def restart(field: Field) -> None:
    """A clean restart of each nsqd in turn."""
    for nsqd in field.chance.sample(field.nsqds, len(field.nsqds)):
        field.cluster.restart(nsqd)
        field.sleep(0.5, 1.0)


@scenario("sigstop")
def sigstop(field: Field) -> None:
    """SIGSTOP of an nsqd for three heartbeats."""
    for nsqd in field.chance.sample(field.nsqds, 1 if field.short else len(field.nsqds)):
        with field.cluster.stopped(nsqd):
            field.sleep(STOP_SECONDS)
        field.sleep(0.5, 1.0)


@scenario("max-rdy-count")
def max_rdy_count(field: Field) -> None:
    """An nsqd comes back with a lower --max-rdy-count, and later with the old one."""
    nsqd = field.chance.choice(field.nsqds)
    field.cluster.restart(nsqd, "-max-rdy-count=2")
    deadline = time.monotonic() + 30.0
    seen: list[int] = []
    while not seen and time.monotonic() < deadline:
        field.sleep(0.2)
        for topic in field.topics.values():
            clients = nsqd.channel(topic).get("clients") or ()
            seen += [client["ready_count"] for client in clients if client["ready_count"]]
    field.sleep(1.0)
    if not seen or max(seen) > 2:
        field.wrong(f"with --max-rdy-count=2 nsqd shows RDY {seen}")
    field.cluster.restart(nsqd)
    field.sleep(0.5)


@scenario("disk-full")
def disk_full(field: Field) -> None:
    """An nsqd cannot write to its data path any more, refuses publishes, then it can again."""
    nsqd = field.chance.choice(field.nsqds)
    # Its topics are paused: what it has said OK to it would lose itself on the way to the channel.
    for topic in field.topics.values():
        nsqd.http(f"/topic/pause?topic={topic}", b"")
    # And what comes back to the channel, as by a time-out, on its way to the channel's file.
    if not field.cluster.wait_until_idle(nsqd, IDLE_SECONDS):
        field.wrong(f"the channel of a paused topic is not empty after {IDLE_SECONDS:g} s")
    largest = max(path.stat().st_size for path in nsqd.server.data_path.iterdir())
    infinity = resource.RLIM_INFINITY
    with field.cluster.fault("disk full", nsqd):
        limit = largest + 40_000
        resource.prlimit(nsqd.server.pid, resource.RLIMIT_FSIZE, (limit, infinity))
        deadline = time.monotonic() + 20.0
        while "file too large" not in nsqd.server.log and time.monotonic() < deadline:
            field.sleep(0.1)
        field.sleep(1.0)
        resource.prlimit(nsqd.server.pid, resource.RLIMIT_FSIZE, (infinity, infinity))
    if "file too large" not in nsqd.server.log:
        field.wrong("the disk of nsqd did not become full")
    # nsqd 1.3.0 has read ahead what a failed write left behind the end of its queue, and would
    # deliver that in the place of the next message; a restart reads the file anew.
    field.cluster.restart(nsqd)
    for topic in field.topics.values():
        nsqd.http(f"/topic/unpause?topic={topic}", b"")
    field.sleep(0.5)


@scenario("paused")
def paused(field: Field) -> None:
    """The channel is paused everywhere, and goes on."""
    for topic in field.topics.values():
        for nsqd in field.nsqds:
            nsqd.http(f"/channel/pause?topic={topic}&channel={CHANNEL}", b"")
    with field.cluster.fault("paused", *field.nsqds):
        field.sleep(1.5)
    for topic in field.topics.values():
        for nsqd in field.nsqds:
            nsqd.http(f"/channel/unpause?topic={topic}&channel={CHANNEL}", b"")
    field.sleep(0.5)


@scenario("topic-deleted")
def topic_deleted(field: Field) -> None:
    """The topic is deleted under its Readers, and comes back with the next publish."""
    for nsqd in field.chance.sample(field.nsqds, 1 if field.short else len(field.nsqds)):
        # What is in it would be deleted with it.
        field.order("publish", on=False)
        if not field.wait_until_drained():
            return
        with field.cluster.fault("topic deleted", nsqd):
            for topic in field.topics.values():
                nsqd.http(f"/topic/delete?topic={topic}", b"")
        field.order("publish", on=True)
        field.sleep(1.5)
    for nsqd in field.nsqds:
        # Writes down where the new queue begins; see cluster.LOSSLESS.
        field.cluster.restart(nsqd)
    field.sleep(0.5)


# -- nsqlookupds ---------------------------------------------------------------------------------


@scenario("lookupds-vanish")
def lookupds_vanish(field: Field) -> None:
    """All nsqlookupds are gone while connections are lost, and come back knowing nothing."""
    cluster = field.cluster
    with cluster.fault("nsqlookupds gone"):
        for lookupd, proxy in zip(cluster.lookupds, cluster.lookups, strict=True):
            proxy.refuse()
            proxy.end_links()
            lookupd.kill()
        for nsqd in field.nsqds:
            field.sleep(0.3)
            cluster.cut(nsqd, reset=True)
        field.sleep(1.0)
        for lookupd, proxy in zip(cluster.lookupds, cluster.lookups, strict=True):
            lookupd.start()
            proxy.listen()
    field.sleep(0.5)


@scenario("lookupds-lie", needs="lies")
def lookupds_lie(field: Field) -> None:
    """nsqlookupds answer nothing, null, garbage, dead or broken nodes, errors, or very late."""
    liars = field.cluster.liars
    for lie in field.chance.sample(LIES, len(LIES)):
        with field.cluster.fault(f"nsqlookupd: {lie}"):
            who = liars if field.chance.random() < 0.5 else [field.chance.choice(liars)]
            slow = 3.0 if field.short else 30.0
            for liar in who:
                liar.tell(lie, slow if lie == "slow" else 0.0)
            field.cluster.cut(field.chance.choice(field.nsqds), reset=True)
            field.sleep(1.5 if lie == "slow" else 0.5)
            for liar in who:
                liar.tell("truth")
    field.sleep(0.5)


# -- clients -------------------------------------------------------------------------------------


@scenario("clock")
def clock(field: Field) -> None:
    """The clock on the wall goes forth and back by hours while connections are lost."""
    for jump in (3600.0, -86400.0, 5.0, -30.0, 0.0):
        with field.cluster.fault("clock set"):
            field.order("clock", jump=jump)
        field.cluster.cut(field.chance.choice(field.nsqds), reset=False)
        field.sleep(0.4, 0.8)


@scenario("fork")
def fork(field: Field) -> None:
    """Clients fork under load; the children publish with the Writers they have inherited."""
    for _ in range(3 if field.short else 8):
        with field.cluster.fault("fork"):
            field.order("fork")
        field.sleep(0.2, 0.5)


@scenario("sigterm")
def sigterm(field: Field) -> None:
    """SIGTERM to the clients under load; others take their place."""
    for world in list(field.clients):
        field.sleep(0.5, 1.0)
        with field.cluster.fault("SIGTERM"):
            field.clients[world].terminate()
            field.start_client(world)
    field.order("memory")
    field.sleep(0.5)


@scenario("sigkill")
def sigkill(field: Field) -> None:
    """SIGKILL of the clients under load; others take their place."""
    for world in list(field.clients):
        field.sleep(0.5, 1.0)
        with field.cluster.fault("client killed"):
            field.clients[world].kill()
            field.start_client(world)
    field.order("memory")
    field.sleep(0.5)


@scenario("stop")
def stop(field: Field) -> None:
    """Readers stop under load, in good time or by force, and others take their place."""
    field.order("handlers", mix={"slow": 0.5})
    for timeout in (10.0, 10.0, 0.0, 10.0) if field.short else (10.0, 0.0, 5.0, 10.0, 0.0, 10.0):
        with field.cluster.fault("stop"):
            field.order("churn", timeout=timeout)
        field.sleep(0.6, 1.0)
    field.order("handlers", mix={})


@scenario("stop-clean")
def stop_clean(field: Field) -> None:
    """Readers stop under load with time for their handlers: nothing may come twice."""
    field.order("handlers", mix={"slow": 0.5})
    for _ in range(3):
        with field.cluster.fault("stop"):
            field.order("churn", timeout=20.0)
        field.sleep(0.8)
    field.order("handlers", mix={})


@scenario("handlers")
def handlers(field: Field) -> None:
    """Handlers raise, requeue, hang, exit or kill their thread or greenlet, and call stop()."""
    moods = ("raise", "requeue", "exit", "kill", "touch", "slow")
    mix = dict.fromkeys(moods, 0.02) | {"detach": 0.1, "hang": 0.004, "stop": 0.004}
    with field.cluster.fault("handlers"):
        field.order("handlers", mix=mix)
        field.sleep(3.0 if field.short else 10.0)
        field.order("handlers", mix={})


@scenario("crowd")
def crowd(field: Field) -> None:
    """200 Readers start at once in each client, consume, and stop."""
    for client in field.clients.values():
        # So many of them on one processor hold each other up.
        with field.cluster.fault("crowd", *field.nsqds):
            answer = client.ask("crowd", count=200, seconds=1.0)
        if not answer["received"]:
            field.wrong("the crowd received nothing")


def mixed(names: list[str], pause: float = 1.0) -> Act:
    """These, one after the other."""

    def act(field: Field) -> None:
        for name in names:
            SCENARIOS[name].act(field)
            field.sleep(0.0, pause)

    return act
