"""The log of a query under crashes and damage: each row once, or an error that names the trouble.

Driver, tasks and log are the product's. Spark, nsqd and the storage are pretended.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

pa = pytest.importorskip("pyarrow")

from hypothesis import HealthCheck, Phase, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule  # noqa: E402

from gnsqsync.errors import NSQError  # noqa: E402
from gnsqsync.spark import read_task, stream_log  # noqa: E402
from gnsqsync.spark import settings as spark_settings  # noqa: E402
from gnsqsync.spark.options import SourceOptions  # noqa: E402
from gnsqsync.spark.plan import Offset, Source, first_offset, parts_of, share_out  # noqa: E402
from gnsqsync.spark.stream_log import StreamLog  # noqa: E402
from tests.support.fake_intake import Channel, Died, FakeIntake  # noqa: E402
from tests.support.memory_store import Memory  # noqa: E402

NSQDS = ("a:4150", "b:4150")
TOPIC = "t"


class World:
    """The parts that outlive a process: nsqds, the log, Spark's checkpoint and the sink."""

    def __init__(self) -> None:
        self.store = Memory()
        self.channels = {nsqd: Channel() for nsqd in NSQDS}
        self.offsets: list[Offset] = []
        self.done = 0
        self.streams = itertools.count()
        self.sink: dict[tuple[int, int], list[str]] = {}
        # Numbers of batches begin anew with each checkpoint.
        self.checkpoint = 0
        # Creates until the process dies; None: it lives.
        self.fuse: int | None = None

    def burn(self) -> None:
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                raise Died


OPTIONS = {
    "nsqdTcpAddresses": ",".join(NSQDS),
    "subscribe": TOPIC,
    "channel": "c",
    "walPath": "/memory",
    "minPartitions": "3",
}


class Run:
    """A process of the driver: the calls of Spark, in Spark's order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.options = SourceOptions.parse(OPTIONS, streaming=True)
        self.log: StreamLog | None = None
        self.first = first_offset(f"stream-{next(world.streams)}", "c")
        self.settings = spark_settings.read_settings(self.options)
        if len(world.offsets) > world.done:
            self.run_batch(world.done)

    def start_of(self, batch: int) -> Offset:
        return self.world.offsets[batch - 1] if batch else self.first

    def open(self, offset: Offset) -> StreamLog:
        if self.log is None:
            self.log = StreamLog(self.options, offset)
        return self.log

    def next_batch(self) -> bool:
        """Plan and run a batch. Return False if nothing waits."""
        world = self.world
        start = self.start_of(len(world.offsets))
        log = self.open(start)
        end = log.left_over(start)
        if end is None:
            looks = {Source(n, TOPIC): c.look() for n, c in world.channels.items()}
            log.looked(start["epoch"], looks)
            depths = {Source(n, TOPIC): len(c.queue) for n, c in world.channels.items() if c.queue}
            if not depths:
                return False
            end = log.plan(start, share_out(depths, self.options.min_partitions))
        world.burn()
        world.offsets.append(end)
        if start["epoch"]:
            log.commit(start["epoch"])
        self.run_batch(len(world.offsets) - 1)
        return True

    def run_batch(self, batch: int) -> None:
        world, end = self.world, self.world.offsets[batch]
        self.open(end).confirm(self.start_of(batch), end)
        rows = []
        for number in range(len(parts_of(end))):
            (plan,) = [
                plan
                for task in spark_settings.plans(end, 3)
                for plan in task
                if plan.partition == number
            ]
            for read in read_task.read_partitions([plan], self.settings, ["value"]):
                rows += [value.decode() for value in read["value"].to_pylist()]
        world.burn()
        # A sink that knows numbers of batches, as the archive does.
        world.sink.setdefault((world.checkpoint, batch), rows)
        world.burn()
        world.done = batch + 1


class PowerCuts(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.world = World()
        self.numbers = itertools.count()
        self.published: set[str] = set()
        self.damaged = self.ended = self.lost = self.hurt = False
        self.now = 0.0
        self.patch.setattr(FakeIntake, "channels", self.world.channels)
        self.patch.setattr(FakeIntake, "before_finish", staticmethod(self.world.burn))
        self.patch.setattr(read_task, "Intake", FakeIntake)
        self.patch.setattr(
            stream_log, "time", SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        )
        for module in (read_task, stream_log, spark_settings):
            self.patch.setattr(module, "open_store", lambda *_, **__: self.world.store)
        create = self.world.store.create

        def fused(name: str, data: bytes) -> bool:
            self.world.burn()
            return create(name, data)

        self.patch.setattr(self.world.store, "create", fused)
        self.patch.setattr(self.world.store, "probe", lambda: None)
        self.driver: Run | None = None

    def attempt(self, batches: int) -> None:
        if self.ended:
            return
        try:
            self.driver = self.driver or Run(self.world)
            for _ in range(batches):
                if not self.driver.next_batch():
                    return
        except Died:
            self.driver = None
        except NSQError as error:
            assert self.damaged, error
            assert "memory" in str(error), error
            self.ended = True

    @rule(nsqd=st.sampled_from(NSQDS), count=st.integers(1, 12))
    def publish(self, nsqd: str, count: int) -> None:
        for _ in range(count):
            number = next(self.numbers)
            self.published.add(f"{number}")
            message = SimpleNamespace(
                id=f"{number:016x}", body=b"%d" % number, timestamp=number, attempts=0
            )
            self.world.channels[nsqd].queue.append(message)

    @rule()
    def run(self) -> None:
        self.attempt(1)

    @rule(creates=st.integers(0, 14))
    def run_and_die(self, creates: int) -> None:
        self.world.fuse = creates
        self.attempt(2)
        self.world.fuse = None
        self.driver = None

    @rule(seconds=st.sampled_from([1.0, 70.0]))
    def wait(self, seconds: float) -> None:
        """nsqd gives back what dead tasks held; the retention passes."""
        self.now += seconds
        for channel in self.world.channels.values():
            channel.give_back(list(channel.held))

    @rule(commit_too=st.booleans())
    def lose_the_newest_offset(self, commit_too: bool) -> None:
        """After a power cut: Spark renames its files without fsync."""
        self.driver = None
        world = self.world
        if not world.offsets:
            return
        was_done = world.done == len(world.offsets)
        world.offsets.pop()
        if was_done and not commit_too:
            # Spark repeats the batch before, whose log may be deleted.
            world.done -= 2
            self.damaged = True
        elif was_done:
            world.done -= 1
            # The first of two batches in a row may be gone from the log.
            self.damaged = self.damaged or self.lost
        world.done = max(0, world.done)
        # Without its first offset Spark does not know the stream, which is refused.
        if not world.offsets:
            self.damaged = True
            world.checkpoint += 1
            # A query that begins anew does not know what came before it: neither batches that the
            # sink has, nor a file that was damaged then.
            self.ended = self.ended or bool(world.sink) or self.hurt
        self.lost = was_done

    @rule(
        file=st.integers(0, 999),
        byte=st.integers(0, 9999),
        how=st.sampled_from(["gone", "cut", "flipped"]),
    )
    def damage(self, file: int, byte: int, how: str) -> None:
        """A file of the log, once, except those that only know ids.

        Nothing can tell of a partition without any file left.
        """
        names = sorted(name for name in self.world.store.names if "/ids/" not in name)
        if not names or self.hurt:
            return
        self.driver = None
        self.hurt = True
        name = names[file % len(names)]
        data = self.world.store.names.pop(name)
        self.damaged = True
        if not data:
            return
        at = byte % len(data)
        if how == "cut":
            self.world.store.names[name] = data[:at]
        elif how == "flipped" and not name.endswith("/committed"):
            flipped = bytes([data[at] ^ 1 << byte % 8])
            self.world.store.names[name] = data[:at] + flipped + data[at + 1 :]

    def teardown(self) -> None:
        try:
            for _ in range(4):
                if not self.ended:
                    self.wait(1.0)
                    self.attempt(50)
            if not self.ended:
                rows = sorted(row for batch in self.world.sink.values() for row in batch)
                assert rows == sorted(self.published)
        finally:
            self.patch.undo()


PowerCuts.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=20,
    # Shrinking takes minutes; the steps of a failure are few enough.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestPowerCuts = PowerCuts.TestCase
