"""One run: a cluster, clients in each world, some faults, and the judgement at the end.

Knows the order of it; what is done to whom is in the scenarios.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import namespaces
from tests.chaos.accounts import Account, Ledger
from tests.chaos.cluster import Cluster, Nsqd
from tests.chaos.processes import ClientFailed, ClientProcess

SETTLE_SECONDS = 90.0
RATE = 150.0
PUBLISHERS = 8
WITHOUT_DELAY = {"one": 5.0, "many": 1.0, "async": 2.0}
WITH_DELAY = {**WITHOUT_DELAY, "defer": 1.0}


@dataclass(frozen=True)
class Plan:
    """What one run is made of. ``needs``: "lies" or "spaces", what the cluster must have."""

    name: str
    seed: str
    worlds: Sequence[str]
    act: Callable[[Field], None]
    needs: str = ""
    kills: bool = False
    short: bool = True
    mutation: str | None = None
    rate: float = RATE
    # How many seconds the Readers have at the end until all RDY is given out. They dial again
    # after half a minute at most, as no outage is long.
    patience: float = 60.0


@dataclass
class Result:
    """How a run went."""

    name: str
    seed: str
    seconds: float
    accounts: list[Account]
    faults: dict[str, int]
    # What kept the run from its end.
    failure: str = ""
    logs: str = ""

    @property
    def is_right(self) -> bool:
        return not self.failure and all(account.is_right for account in self.accounts)

    def complaints(self) -> list[str]:
        lines = [f"{self.name}: {self.failure}"] if self.failure else []
        for account in self.accounts:
            lines += [f"{self.name}: {text}" for text in account.complaints()]
        return lines


class Field:
    """What a scenario is given: servers to hurt, clients to order about, chance."""

    def __init__(self, plan: Plan, cluster: Cluster, folder: Path) -> None:
        self.plan = plan
        self.cluster = cluster
        self.chance = random.Random(plan.seed)
        self.short = plan.short
        self.problems: list[str] = []
        self.topics = {world: f"chaos_{world}" for world in plan.worlds}
        self.clients: dict[str, ClientProcess] = {}
        self._folder = folder
        # All that ever ran, with those that a scenario has ended.
        self._ever: list[ClientProcess] = []

    # -- for scenarios ---------------------------------------------------------------------------

    @property
    def nsqds(self) -> list[Nsqd]:
        return self.cluster.nsqds

    def sleep(self, low: float, high: float | None = None) -> None:
        """Let the clients work on for so many seconds."""
        time.sleep(low if high is None else self.chance.uniform(low, high))

    def wrong(self, text: str) -> None:
        """A scenario has seen what may not be."""
        self.problems.append(text)

    def order(self, do: str, **order: object) -> list[object]:
        """Give an order to all clients at the same time; their answers."""
        for client in self.clients.values():
            client.tell(do, **order)
        return [client.answer() for client in self.clients.values()]

    def start_client(self, world: str) -> None:
        """A client in that world, in the place of the one that was there."""
        plan = self.plan
        client = ClientProcess(
            self.cluster,
            world,
            self.topics[world],
            self._folder,
            seed=plan.seed,
            rate=plan.rate,
            publishers=PUBLISHERS,
            kinds=WITHOUT_DELAY if plan.kills else WITH_DELAY,
            mutation=plan.mutation,
        )
        self.clients[world] = client
        self._ever.append(client)

    def wait_until_drained(self, timeout: float = SETTLE_SECONDS) -> bool:
        """Until each message that nsqd has is finished."""
        deadline = time.monotonic() + timeout
        queues = [(nsqd, topic) for nsqd in self.nsqds for topic in self.topics.values()]
        while True:
            unread = [nsqd.number for nsqd, topic in queues if not nsqd.has_read_all(topic)]
            left = sum(nsqd.left(topic) for nsqd, topic in queues)
            if not unread and not left:
                return True
            if time.monotonic() > deadline:
                files = f", files that nsqds {unread} have not read" if unread else ""
                self.wrong(f"{left} messages are still in nsqd after {timeout:g} s{files}")
                return False
            time.sleep(0.05)

    # -- the run ---------------------------------------------------------------------------------

    def run(self) -> None:
        for world in self.plan.worlds:
            self.start_client(world)
        # Whoever is asked for the first time answers when it has started.
        self.order("memory")
        self.sleep(0.5)
        self.plan.act(self)
        self._settle()

    def _settle(self) -> None:
        for nsqd in self.nsqds:
            nsqd.proxy.plan = None
        for liar in self.cluster.liars:
            liar.tell("truth")
        self.order("handlers", mix={})
        if not all(self.order("publish", on=False)):
            self.wrong("a publish has no outcome long after its time is over")
        if self.wait_until_drained():
            self._wait_for_rdy()
        for client in self.clients.values():
            client.finish()
        deadline = time.monotonic() + 10.0
        while left := self.cluster.clients_left():
            if time.monotonic() > deadline:
                self.wrong(f"nsqd counts {left} connections after the clients have ended")
                break
            time.sleep(0.05)

    def _wait_for_rdy(self) -> None:
        """Until every Reader is connected everywhere and has given out all of max_in_flight."""
        deadline = time.monotonic() + self.plan.patience
        while problems := self._rdy_problems():
            if time.monotonic() > deadline:
                self.problems += problems
                return
            time.sleep(0.1)

    def _rdy_problems(self) -> list[str]:
        problems = []
        for states in self.order("state"):
            assert isinstance(states, list)
            for state in states:
                rdy = state["rdy"].values()
                # The one without adaptive levels shows its whole share; others ask for one more
                # than is in flight.
                wanted = state["max_in_flight"] if state["slot"] == "direct" else len(self.nsqds)
                given_out = all(rdy) and sum(rdy) == wanted
                if state["backoff"]:
                    # One nsqd may send one message, which at rest never comes.
                    given_out = sum(rdy) == 1
                if len(rdy) != len(self.nsqds) or not given_out:
                    problems.append(f"at rest the RDY of a Reader is not given out: {state}")
        return problems

    def accounts(self) -> list[Account]:
        facts = self.cluster.facts()
        found = []
        for world in self.topics:
            ledger = Ledger(world, facts)
            for client in self._ever:
                if client.world == world and client.journal.exists():
                    ledger.read(client.journal, killed_at=client.killed_at)
            found.append(ledger.close())
        found[0].wrong += self.problems
        return found

    def discard(self) -> None:
        for client in self._ever:
            client.discard()


def run(plan: Plan) -> Result:
    """One run with servers, processes and files of its own, all of which end with it."""
    began = time.monotonic()
    topics = [f"chaos_{world}" for world in plan.worlds]
    failure = logs = ""
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        cluster = Cluster(
            topics, seed=plan.seed, lies=plan.needs == "lies", spaces=plan.needs == "spaces"
        )
        try:
            field = Field(plan, cluster, Path(name))
            try:
                field.run()
            except (ClientFailed, OSError, RuntimeError, AssertionError) as error:
                failure = f"{type(error).__name__}: {error}"
                logs = cluster.logs()
            finally:
                field.discard()
            accounts = field.accounts()
            faults = dict(cluster.counts)
        finally:
            cluster.close()
    return Result(plan.name, plan.seed, time.monotonic() - began, accounts, faults, failure, logs)


def unavailable(needs: str) -> str:
    """Why a plan with these needs cannot run here; "" when it can."""
    if needs == "spaces":
        try:
            namespaces.require()
        except namespaces.Unavailable as error:
            return str(error)
    return ""
