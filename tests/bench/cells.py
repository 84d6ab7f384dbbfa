"""Runs cells: one client doing one row once, in a child process, and the schedule of them all.

Knows nothing of tables. Clients take turns within each row and round, so that what else the
machine does hits all of them alike.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.bench.clients import Client
from tests.bench.progress import Progress
from tests.bench.rows import Row
from tests.bench.runners.measure import Order
from tests.bench.server import Server


class Failed(Exception):
    """A cell that gave no figure. The text is what the child said, its last line the shortest."""


@dataclass(frozen=True)
class Plan:
    """How the cells are run. ``messages`` fixes their number, else ``seconds`` decides it."""

    rounds: int
    seconds: float
    messages: int | None
    cpu: int | None
    cell_timeout: float
    runtime: str


@dataclass(frozen=True)
class Sample:
    """One measured cell: seconds of the client's wall and CPU time, and nsqd's CPU time."""

    row: str
    client: str
    round: int
    messages: int
    wall: float
    user: float
    system: float
    server: float | None
    max_rss_kib: int

    @property
    def micros(self) -> float:
        """Client CPU microseconds a message, the same as CPU seconds a million messages."""
        return (self.user + self.system) / self.messages * 1e6

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.wall

    @property
    def server_micros(self) -> float | None:
        return None if self.server is None else self.server / self.messages * 1e6


class Bench:
    """The state of one run of the command."""

    def __init__(
        self, server: Server, plan: Plan, pythons: dict[str, str], progress: Progress
    ) -> None:
        self.samples: list[Sample] = []
        self.failures: dict[tuple[str, str], str] = {}
        self.versions: dict[str, dict[str, str]] = {}
        self._server = server
        self._plan = plan
        self._pythons = pythons
        self._progress = progress
        self._topics = 0

    def run(self, rows: Sequence[Row], clients: Sequence[Client]) -> None:
        """All cells of all rounds. A cell that fails is noted and not tried again."""
        plan = self._plan
        cells = [(row, c) for row in rows for c in clients if row.kind in c.kinds]
        probes = plan.messages is None
        self._progress.total(len(cells) * (plan.rounds + probes))
        counts: dict[tuple[str, str], int] = {}
        for number in range(0 if probes else 1, plan.rounds + 1):
            for row in rows:
                doing = [c for c in clients if row.kind in c.kinds]
                # Nobody always follows the same neighbour.
                turn = number % len(doing) if doing else 0
                for client in doing[turn:] + doing[:turn]:
                    key = row.name, client.name
                    if key in self.failures:
                        self._progress.skip()
                        continue
                    probing = number == 0
                    self._progress.begin(
                        f"{'probe' if probing else f'round {number}'}: {row.name} {client.name}"
                    )
                    messages = row.probe if probing else counts.get(key, plan.messages or 0)
                    try:
                        sample = self._cell(row, client, number, row.whole(messages))
                    except Failed as error:
                        self.failures[key] = str(error)
                        short = str(error).splitlines()[-1]
                        self._progress.say(f"{row.name} {client.name} failed: {short}")
                        continue
                    if probing:
                        counts[key] = row.whole(sample.rate * plan.seconds)
                    else:
                        self.samples.append(sample)

    def _cell(self, row: Row, client: Client, number: int, messages: int) -> Sample:
        self._topics += 1
        topic, channel = f"bench-{self._topics}", "bench" if row.consumes else ""
        self._server.create(topic, channel)
        try:
            order = Order(
                kind=row.kind,
                address=self._server.tcp_address,
                topic=topic,
                channel=channel,
                messages=messages,
                warmup=row.warmup,
                body_size=row.body_size,
                callers=row.callers,
                batch=row.batch,
                max_in_flight=row.max_in_flight,
                flavour=self._plan.runtime if client.name == "ours" else client.flavour,
                cpu=self._plan.cpu,
                server_pid=self._server.pid,
            )
            if row.consumes:
                fed = row.warmup + messages + row.surplus
                self._server.feed(topic, channel, fed, order.body)
            result = self._child(client, order)
            if not row.consumes:
                received = self._server.published(topic)
                if received != row.warmup + messages:
                    raise Failed(
                        f"{row.warmup + messages} messages published, nsqd received {received}"
                    )
        finally:
            self._server.delete(topic)
        versions = result.pop("versions")
        versions["python"] = result.pop("python")
        self.versions[client.name] = versions
        return Sample(row=row.name, client=client.name, round=number, **result)

    def _child(self, client: Client, order: Order) -> dict[str, Any]:
        command = [self._pythons[client.name], str(client.script), json.dumps(asdict(order))]
        try:
            child = subprocess.run(
                command,
                env=client.environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=self._plan.cell_timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"no end within {self._plan.cell_timeout:g} s") from None
        lines = child.stdout.splitlines()
        if child.returncode != 0 or not lines:
            said = child.stderr.strip()[-4000:] or "it said nothing"
            raise Failed(f"exit status {child.returncode}:\n{said}")
        result: dict[str, Any] = json.loads(lines[-1])
        return result
