"""Runs cells: one client doing one row once, in a child process, and the schedule of them all.

Knows nothing of tables. Clients take turns within each row and round, so that what else the
machine does hits all of them alike.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tests.bench.clients import HERE, Client
from tests.bench.progress import Progress
from tests.bench.rows import LATENCY_SECONDS, Row
from tests.bench.runners.measure import Order
from tests.bench.server import Server, pinned

PACER = HERE / "runners" / "pacer.py"

# A first, short run that takes longer has come to a standstill.
PROBE_TIMEOUT = 10.0


class Failed(Exception):
    """A cell that gave no figure. The text is what the child said, its last line the shortest."""


class Hung(Failed):
    """A cell that did not end in time and was killed."""


@dataclass(frozen=True)
class Layout:
    """Where client and nsqd run: both on one CPU (``pinned``), or wherever the kernel likes."""

    name: str
    cpu: int | None


@dataclass(frozen=True)
class Plan:
    """How the cells are run. ``messages`` fixes their number, else ``seconds`` decides it."""

    rounds: int
    seconds: float
    messages: int | None
    cell_timeout: float


@dataclass(frozen=True)
class Sample:
    """One measured cell: seconds of the client's wall and CPU time, and nsqd's CPU time.

    ``server_reads`` and ``server_writes``: system calls of nsqd. Memory in KiB: after the imports,
    when the meter started and when it stopped. ``latencies``: microseconds.
    """

    layout: str
    row: str
    client: str
    round: int
    messages: int
    wall: float
    user: float
    system: float
    server: float | None = None
    server_reads: int | None = None
    server_writes: int | None = None
    imports_kib: int | None = None
    start_kib: int | None = None
    stop_kib: int | None = None
    latencies: tuple[int, ...] = ()

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

    @property
    def memory_mib(self) -> float | None:
        """Memory above the imports, at the end of the measurement."""
        if self.stop_kib is None or self.imports_kib is None:
            return None
        return (self.stop_kib - self.imports_kib) / 1024

    @property
    def growth(self) -> float | None:
        """Bytes of memory that each measured message has left behind."""
        if self.stop_kib is None or self.start_kib is None:
            return None
        return (self.stop_kib - self.start_kib) * 1024 / self.messages


# Seconds of CPU that a server needs at least for a message that it delivers: a tenth of nsqd's.
LEAST_SERVER_SECONDS = 0.1e-6


def check_delivered(order: Order, result: Mapping[str, Any]) -> None:
    """Failed when the server did too little in the measured time for what a consumer counted.

    Then most of it had been delivered before, and its rate says nothing.
    """
    spent = result["server"]
    if order.kind != "consume" or spent is None:
        return
    if spent < LEAST_SERVER_SECONDS * result["messages"]:
        raise Failed(
            f"{result['messages']:,} messages were counted while the server used {spent:.6f} s of"
            " CPU: they had been delivered before the measured time"
        )


class Bench:
    """The state of one run of the command; ``servers`` by the name of their layout."""

    def __init__(
        self,
        servers: Mapping[str, Server],
        layouts: Sequence[Layout],
        plan: Plan,
        commands: Mapping[str, list[str]],
        progress: Progress,
    ) -> None:
        self.samples: list[Sample] = []
        self.failures: dict[tuple[str, str, str], Failed] = {}
        self.versions: dict[str, dict[str, str]] = {}
        self.layouts = layouts
        self.servers = servers
        self._plan = plan
        self.commands = commands
        self._progress = progress
        self._topics = 0

    def run(self, rows: Sequence[Row], clients: Sequence[Client]) -> None:
        """All cells of all rounds. A cell that fails is noted and not tried again."""
        plan, alone = self._plan, len(self.layouts) == 1
        cells = [
            (
                layout,
                row,
                [c for c in clients if c.can(row) and (alone or c.does(row, layout.name))],
            )
            for layout in self.layouts
            for row in rows
            if layout.name in row.layouts or alone
        ]
        first = 0 if plan.messages is None else 1
        counts: dict[tuple[str, str], int] = {}
        turns = []
        for number in range(first, plan.rounds + 1):
            for layout, row, able in cells:
                if number > row.rounds(plan.rounds):
                    continue
                # One layout is enough to learn how many messages fill the time.
                if number == 0 and not (row.has_probe and (alone or layout is self.layouts[0])):
                    continue
                # Nobody always follows the same neighbour.
                turn = number % len(able) if able else 0
                turns += [(layout, row, c, number) for c in able[turn:] + able[:turn]]
        self._progress.total(len(turns))
        for layout, row, client, number in turns:
            self._next(layout, row, client, number, counts)

    def _next(
        self,
        layout: Layout,
        row: Row,
        client: Client,
        number: int,
        counts: dict[tuple[str, str], int],
    ) -> None:
        plan, key = self._plan, (layout.name, row.name, client.name)
        if key in self.failures:
            self._progress.skip()
            return
        what = f"round {number}" if number else "probe"
        self._progress.begin(f"{what}, {layout.name}: {row.name} {client.name}")
        if row.kind == "latency":
            messages = plan.messages or round(row.rate * LATENCY_SECONDS)
        else:
            messages = counts.get(key[1:], plan.messages or row.probe)
        try:
            sample = self.cell(layout, row, client, number, row.whole(messages))
        except Failed as error:
            self.failures[key] = error
            short = str(error).splitlines()[-1]
            self._progress.say(f"{layout.name}: {row.name} {client.name} failed: {short}")
            return
        if number:
            self.samples.append(sample)
        else:
            counts[key[1:]] = row.whole(sample.rate * plan.seconds)

    def cell(self, layout: Layout, row: Row, client: Client, number: int, messages: int) -> Sample:
        """Measure one cell. Raises Failed, or Hung when its child had to be killed."""
        result = self.measure(layout, row, client, messages, PROBE_TIMEOUT if number == 0 else None)
        known = {name: result[name] for name in Sample.__dataclass_fields__ if name in result}
        known["latencies"] = tuple(result.get("latencies", ()))
        return Sample(layout=layout.name, row=row.name, client=client.name, round=number, **known)

    def measure(
        self,
        layout: Layout,
        row: Row,
        client: Client,
        messages: int,
        timeout: float | None = None,
        steps: Sequence[tuple[float, int]] = (),
        flavour: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """What the runner printed. ``steps``: rates and messages, instead of the row's rate.

        ``environment``: variables besides those of the client.
        """
        self._topics += 1
        server = self.servers[layout.name]
        topic, channel = f"bench-{self._topics}", "bench" if row.consumes else ""
        server.create(topic, channel)
        order = replace(
            self.order(layout, row, client, messages),
            topic=topic,
            channel=channel,
            flavour=flavour or client.flavour,
        )
        try:
            if row.fed:
                server.feed(topic, channel, row.warmup + messages + row.surplus, order.body)
            pacer = None
            if row.kind == "latency":
                pacer = {
                    "address": order.address,
                    "topic": topic,
                    "body_size": order.body_size,
                    "cpu": order.cpu,
                    "steps": steps or [(row.rate, row.warmup + messages)],
                }
            result = self.child(client, order, pacer, timeout, environment)
            if not row.consumes:
                said = result["messages"] + (row.warmup if client.name != "nsq-bench" else 0)
                received = server.published(topic)
                if received != said:
                    raise Failed(f"{said} messages published, nsqd received {received}")
        finally:
            server.delete(topic)
        versions = result.pop("versions")
        if "python" in result:
            versions["python"] = result.pop("python")
        self.versions[client.name] = versions
        return result

    def order(self, layout: Layout, row: Row, client: Client, messages: int) -> Order:
        """What a cell is told, but for topic and channel."""
        server = self.servers[layout.name]
        return Order(
            kind=row.kind,
            address=server.tcp_address,
            topic="",
            channel="",
            messages=messages,
            warmup=row.warmup,
            body_size=row.body_size,
            callers=row.callers,
            batch=row.batch,
            max_in_flight=row.max_in_flight,
            workers=row.workers,
            latency=row.latency,
            handler_seconds=row.handler_seconds,
            transport=row.transport,
            ca_file=server.ca_file,
            collect=row.collect,
            seconds=self._plan.seconds,
            flavour=client.flavour,
            cpu=layout.cpu,
            server_pid=server.pid,
        )

    def child(
        self,
        client: Client,
        order: Order,
        pacer: dict[str, Any] | None = None,
        timeout: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Run one child process to its end, a publisher beside it, and return what it printed."""
        timeout = timeout or self._plan.cell_timeout
        command = [*self.commands[client.name], json.dumps(asdict(order))]
        if order.cpu is not None and client.runner in client.go:
            # Before Go counts its CPUs, which it does once, at start.
            command = pinned(order.cpu, command)
        child = start(command, {**client.environment(), **(environment or {})})
        with contextlib.ExitStack() as stack:
            stack.callback(_end, child)
            if pacer is not None:
                try:
                    for server in self.servers.values():
                        if server.tcp_address == order.address:
                            server.wait_for_consumer(order.topic, child)
                except RuntimeError as error:
                    raise Failed(f"{child.communicate()[1].strip()}\n{error}") from None
                publisher = start([sys.executable, str(PACER), json.dumps(pacer)], None)
                stack.callback(_end, publisher)
            try:
                output, said = child.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                raise Hung(f"no end within {timeout:g} s") from None
            if pacer is not None and publisher.wait(timeout):
                raise Failed(f"the publisher ended: {publisher.communicate()[1][-2000:]}")
        lines = output.splitlines()
        if child.returncode != 0 or not lines:
            raise Failed(
                f"exit status {child.returncode}:\n{said.strip()[-4000:] or 'it said nothing'}"
            )
        result: dict[str, Any] = json.loads(lines[-1])
        check_delivered(order, result)
        return result


def start(command: Sequence[str], environment: dict[str, str] | None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _end(child: subprocess.Popen[str]) -> None:
    """Kill a child that still runs, and let go of its pipes."""
    if child.poll() is None:
        child.kill()
    child.communicate()
