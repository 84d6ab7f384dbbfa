"""``python -m tests.spark.cluster``: the lines of docs/spark/cluster on a cluster, and kills.

Three hosts in namespaces, a standalone master and two workers on them, and user nobody who packs an
environment and submits the archive job, letter by letter as the page says. Then executors, workers
and drivers get SIGKILL, each at a moment when they hold messages. In the end every number must be
in the archive exactly once. Needs root, for the namespaces.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gnsqsync.spark.jobs.layout import Place
from tests.bench import progress as progress_kinds
from tests.bench.progress import Progress
from tests.spark import hosts, session
from tests.spark.hosts import Host, Network
from tests.spark.kills import SETTLED, Publisher, count, numbers
from tests.spark.nsqds import Cluster, OwnCluster, numbered, scratch
from tests.spark.processes import Family
from tests.spark.standalone import MASTER, WORKERS, OnHosts
from tests.support.servers import ROOT
from tests.support.texts import DOCS, code_blocks

PAGE = DOCS / "spark" / "cluster.rst"
# As the page has them.
TOPIC, CHANNEL, ARCHIVE = "orders", "archive", "nsq"
BODY = 100
KINDS = ("executor", "worker", "driver")
# Seconds for a job to start, to go on after a kill, and to end.
TIMEOUT = 900.0
# Seconds in which a share of the messages is published, one share for each kill.
SHARE_SECONDS = 8.0
# At most so many moments with messages in flight pass before a strike.
PASSED = 4
# A job that ends by itself is started again, as a service manager does, at most so often.
RESTARTS = 5


def page() -> tuple[str, str]:
    """The page's first commands as two scripts: what packs the environment, and what submits."""
    block = code_blocks(PAGE, "console")[0]
    lines = [line.removeprefix("$ ") for line in block.strip().splitlines()]
    cut = next(n for n, line in enumerate(lines) if line.startswith("export "))
    return "\n".join(lines[:cut]), "\n".join(lines[cut:])


class Site:
    """The cluster, its nsqds, and the host of the person who submits; ``open_site`` makes it."""

    def __init__(self, network: Network, spark: OnHosts, nsqds: Cluster) -> None:
        self.network = network
        self.spark = spark
        self.nsqds = nsqds
        self.desk: Host = network.hosts[MASTER]
        self.archive = network.shared / ARCHIVE

    @property
    def log(self) -> Path:
        """What scripts and jobs print."""
        return self.network.folder / "job.log"

    def start(self, script: str) -> Family:
        """Run a script in the home of nobody, where pip takes packages from a folder."""
        pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/mnt/home/wheels"}
        return self.desk.start(["bash", "-ec", script], self.log, pip)

    def run(self, script: str) -> tuple[int, str]:
        """Run a script to its end; the exit status and what it printed."""
        seen = self.log.stat().st_size if self.log.exists() else 0
        family = self.start(script)
        try:
            status = family.process.wait(TIMEOUT)
        finally:
            family.kill(random.Random(0))
        return status, self.log.read_bytes()[seen:].decode(errors="replace")

    def must_run(self, script: str) -> str:
        """As run(); RuntimeError when the script fails."""
        status, text = self.run(script)
        if status:
            raise RuntimeError(f"status {status} of:\n{script}\n{text[-6000:]}")
        return text


@contextmanager
def open_site(folder: Path) -> Iterator[Site]:
    """A Site whose files are in ``folder``, with what pip may install."""
    import pyspark

    home = Path(pyspark.__file__).parent
    with Network(folder, home, (MASTER, *WORKERS)) as network:
        _wheels(folder, network.hosts[MASTER].files / "home" / "wheels")
        with OwnCluster("real", 3, make=network.server) as nsqds, OnHosts(network) as spark:
            nsqds.create(TOPIC, CHANNEL)
            yield Site(network, spark, nsqds)


def _wheels(folder: Path, target: Path) -> None:
    """This checkout and all that the page installs beside it, as wheels."""
    source = folder / "source"
    source.mkdir()
    # A build in the checkout would leave its traces there.
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.rst", "LICENSE"):
        shutil.copy(ROOT / name, source)
    (source / "gnsqsync").symlink_to(ROOT / "gnsqsync")
    wanted = [f"{source}[cli]", "pyarrow", "venv-pack"]
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(target)]
    subprocess.run([*pip, *wanted], check=True)


@dataclass(frozen=True)
class Plan:
    """What a campaign does."""

    messages: int
    kills: int
    seed: int


@dataclass(frozen=True)
class Strike:
    """One kill. ``held``: messages in flight with those who were killed; for a driver, with all
    tasks of its job."""

    kind: str
    host: str
    held: int
    processes: int
    second: float
    published: int


@dataclass(frozen=True)
class Report:
    """How a campaign went. ``ids``: different pairs of nsqd and id; ``ends``: of jobs that were not
    killed, with what they said."""

    plan: Plan
    strikes: list[Strike]
    rows: int
    distinct: int
    ids: int
    ends: list[str]
    seconds: float

    @property
    def is_right(self) -> bool:
        return self.rows == self.distinct == self.ids == self.plan.messages and all(
            strike.held > 0 for strike in self.strikes
        )

    def __str__(self) -> str:
        table: list[tuple[object, ...]] = [
            ("kill", "of", "on", "in flight", "processes", "second", "published")
        ]
        for number, s in enumerate(self.strikes, 1):
            row = (f"{s.held:,}", s.processes, f"{s.second:.0f}", f"{s.published:,}")
            table.append((number, s.kind, s.host, *row))
        widths = [max(len(str(row[i])) for row in table) for i in range(len(table[0]))]
        lines = ["  ".join(str(c).rjust(w) for c, w in zip(r, widths, strict=True)) for r in table]
        plan = self.plan
        held = sum(strike.held > 0 for strike in self.strikes)
        return "\n".join(
            [
                *lines,
                *(f"the job ended by itself, {end}" for end in self.ends),
                "",
                f"{plan.messages:,} messages, {len(self.strikes)} kills, {held} of them with"
                f" messages in flight, seed {plan.seed}, {self.seconds:.0f} s:",
                f"{self.rows:,} rows in the archive with {self.ids:,} different (nsqd, id),"
                f" {plan.messages - self.distinct:,} lost, {self.rows - self.distinct:,} twice",
            ]
        )


class Campaign:
    """The page's job under SIGKILL, on a Site whose environment is packed."""

    def __init__(self, plan: Plan, site: Site, progress: Progress) -> None:
        self._plan = plan
        self._site = site
        self._progress = progress
        self._chance = random.Random(plan.seed)
        # The job of the page takes what waits and ends; this one is to be killed at work.
        self._submit = page()[1].replace(" --once", " --interval 0")
        self._addresses = {site.network.hosts[name].address: name for name in WORKERS}

    def run(self) -> Report:
        self._began = time.monotonic()
        plan = self._plan
        self._progress.total(plan.kills + 1)
        self._allowed = 0.0
        self._ends: list[str] = []
        self._publisher = Publisher(self._site.nsqds, plan.messages, TOPIC)
        self._job = self._site.start(self._submit)
        strikes = []
        try:
            for number in range(plan.kills):
                kind = KINDS[number % len(KINDS)]
                self._progress.begin(f"kill {number + 1} of {plan.kills}: {kind}")
                strikes.append(self._strike(kind, number))
                self._progress.say(str(strikes[-1]))
            self._progress.begin("the end")
            self._publish(1.0)
            self._wait_until_archived()
            self._stop()
        finally:
            self._job.kill(self._chance)
            self._publisher.close()
        return self._report(strikes)

    def _strike(self, kind: str, number: int) -> Strike:
        """Kill as soon as an nsqd says that messages are in flight, and still says so when those
        who hold them are stopped."""
        nsqds, spark, publisher = self._site.nsqds, self._site.spark, self._publisher
        share = 1 / (self._plan.kills + 1)
        self._publish(number * share + share / 4)
        passes = self._chance.randrange(PASSED)
        deadline = time.monotonic() + TIMEOUT
        while True:
            self._check(deadline)
            if publisher.is_at_rest and not nsqds.left(TOPIC, CHANNEL):
                # All of it went by. Some is kept for the kills to come.
                self._publish(min(self._allowed + share / 4, 1 - share / 4))
            families = {name: spark.workers[name].pids() for name in WORKERS}
            held = self._held()
            if not held:
                time.sleep(0.005)
                continue
            if passes:
                passes -= 1
                time.sleep(self._chance.uniform(0.0, 0.5))
                continue
            name = max(held, key=lambda each: held[each])
            frozen = [p for n, ps in families.items() if n == name or kind == "driver" for p in ps]
            _signal(frozen, signal.SIGSTOP)
            held = self._held()
            total = sum(held.values()) if kind == "driver" else held.get(name, 0)
            if not total:
                _signal(frozen, signal.SIGCONT)
                continue
            killed = self._kill(kind, name, families[name])
            _signal(set(frozen) - killed, signal.SIGCONT)
            return Strike(
                kind=kind,
                host=MASTER if kind == "driver" else name,
                held=total,
                processes=len(killed) or 1,
                second=time.monotonic() - self._began,
                published=publisher.published,
            )

    def _publish(self, share: float) -> None:
        """Go on to this share of all messages, if it is more than before."""
        self._allowed = max(self._allowed, share)
        self._publisher.allow(self._allowed, SHARE_SECONDS)

    def _kill(self, kind: str, name: str, pids: list[int]) -> set[int]:
        """Kill, and start again what somebody has to start again; who was killed."""
        spark = self._site.spark
        if kind == "driver":
            killed = set(self._job.pids())
            self._job.kill(self._chance)
            self._job = self._site.start(self._submit)
        elif kind == "worker":
            killed = set(pids)
            spark.workers[name].kill(self._chance)
            spark.start_worker(name)
        else:
            # The JVM alone, as by the kernel when memory is short: its Python workers live on.
            killed = {pid for pid in pids if b"CoarseGrainedExecutorBackend" in _command(pid)}
            _signal(killed, signal.SIGKILL)
        return killed

    def _held(self) -> dict[str, int]:
        """Messages in flight by the worker's host."""
        found = self._site.nsqds.in_flight(TOPIC, CHANNEL)
        return {self._addresses[address]: count for address, count in found.items()}

    def _wait_until_archived(self) -> None:
        """Until the archive holds as many rows as were published, or grows no more."""
        nsqds, wanted = self._site.nsqds, self._plan.messages
        self._wait(lambda: self._publisher.published == wanted)
        self._wait(lambda: nsqds.left(TOPIC, CHANNEL) == 0)
        seen, since = -1, time.monotonic()
        while seen < wanted and time.monotonic() - since < SETTLED:
            rows = count(Place(str(self._site.archive)))
            if rows != seen:
                seen, since = rows, time.monotonic()
            time.sleep(0.5)

    def _stop(self) -> None:
        """SIGTERM to the driver, as a service manager stops it."""
        drivers = [pid for pid in self._job.pids() if _is_driver(_command(pid))]
        _signal(drivers, signal.SIGTERM)
        status = self._job.process.wait(TIMEOUT)
        if status != 0:
            raise RuntimeError(f"the job ended with {status}:\n{self._log_tail()}")

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            self._check(deadline)
            # Neither nsqd nor the job has an event for us.
            time.sleep(0.05)

    def _check(self, deadline: float) -> None:
        if self._publisher.error is not None:
            raise self._publisher.error
        status = self._job.process.poll()
        if status is not None and len(self._ends) < RESTARTS:
            last = self._log_tail().strip().splitlines()[-1:]
            self._ends.append(f"status {status}: {''.join(last)}")
            self._progress.say(f"the job ended by itself, {self._ends[-1]}")
            self._job.kill(self._chance)
            self._job = self._site.start(self._submit)
        elif status is not None or time.monotonic() > deadline:
            state = "did not come that far" if status is None else f"ended with {status}"
            depths = self._site.nsqds.depths(TOPIC, CHANNEL)
            text = f"{self._publisher.published} published, {depths}:\n{self._log_tail()}"
            raise RuntimeError(f"the job {state}; {text}")

    def _log_tail(self) -> str:
        return self._site.log.read_text(errors="replace")[-6000:]

    def _report(self, strikes: list[Strike]) -> Report:
        seen = bytearray(self._plan.messages)
        rows = 0
        for number in numbers(Place(str(self._site.archive))):
            rows += 1
            seen[number] = 1
        return Report(
            plan=self._plan,
            strikes=strikes,
            rows=rows,
            distinct=sum(seen),
            ids=ids(self._site.archive),
            ends=self._ends,
            seconds=time.monotonic() - self._began,
        )


def ids(archive: Path) -> int:
    """How many different pairs of nsqd and id an archive has."""
    from pyarrow import dataset

    rows = dataset.dataset(archive, format="parquet").to_table(columns=["nsqd", "id"])
    return int(rows.group_by(["nsqd", "id"]).aggregate([]).num_rows)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue  # it has ended meanwhile


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it has ended meanwhile


def _is_driver(command: bytes) -> bool:
    """Whether it is the Python of a job: the JVM beside it names the script, too."""
    return command.startswith(b"./env/bin/python") and b"gnsqsync_job.py" in command


def follow_page(site: Site, messages: int) -> int:
    """Do what the page says, letter by letter; the rows in the archive. RuntimeError when a line
    fails."""
    site.nsqds.publish(TOPIC, numbered(range(messages), BODY))
    pack, submit = page()
    site.must_run(pack)
    site.must_run(submit)
    return count(Place(str(site.archive)))


def arguments(argv: Sequence[str] | None) -> Plan:
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.cluster",
        description="Follow docs/spark/cluster on hosts in namespaces; then archive numbered"
        " messages while executors, workers and drivers are killed with messages in flight.",
    )
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--seed", type=int, help="of the moments; a new one by default")
    chosen = parser.parse_args(argv)
    if chosen.messages < 1000 or chosen.kills < 0:
        parser.error("--messages must be 1000 or more, --kills not negative")
    seed = random.SystemRandom().randrange(1 << 32) if chosen.seed is None else chosen.seed
    return Plan(chosen.messages, chosen.kills, seed)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 when something was lost or is there twice, 2 when it cannot run."""
    plan = arguments(argv)
    if not session.is_ready():
        return 2
    try:
        hosts.require()
    except hosts.Unavailable as error:
        print(error, file=sys.stderr)
        return 2
    with scratch("cluster") as name, progress_kinds.choose() as progress:
        progress.say(f"seed {plan.seed}")
        with open_site(Path(name)) as site:
            progress.say("the cluster is there; packing the environment")
            site.must_run(page()[0])
            report = Campaign(plan, site, progress).run()
    print(report)
    return 0 if report.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
