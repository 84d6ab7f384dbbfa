"""What messages cost in sends, recvs, locks and hops, and the rules about locks, as counted.

Every test ends with ``check_ended()``: no task holds two locks, none waits, dials, joins or runs
user code under one, and none is left.
"""

from __future__ import annotations

import gc
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from gnsqsync import Message, Observer, Reader, ReaderGroup, Requeue, Writer
from gnsqsync.errors import NSQError, PublishError
from gnsqsync.runtime import choose
from tests.component.conftest import Client, address
from tests.support import scripted
from tests.support.counting import CountingRuntime, Counts
from tests.support.scripted import Command, ScriptedNsqd, automatic, message_frame
from tests.support.servers import Certificates
from tests.support.worlds import World

# TLS serializes its two directions, and takes nothing under it.
LEAVES = ("gnsqsync.connection.opening.Opening",)


@pytest.fixture
def runtime(world: World) -> CountingRuntime:
    return CountingRuntime(choose(world.runtime), LEAVES)


@pytest.fixture
def client(world: World, runtime: CountingRuntime) -> Iterator[Client]:
    """Whose things run on ``runtime``, and break no rule."""

    class Counted(Client):
        def writer(self, *nsqds: ScriptedNsqd, **options: Any) -> Writer:
            return super().writer(*nsqds, runtime=runtime, **options)

        def reader(self, handler: Any, *nsqds: ScriptedNsqd, **options: Any) -> Reader:
            return super().reader(handler, *nsqds, runtime=runtime, **options)

    client = Counted(world)
    yield client
    client.close()
    runtime.check_ended()


class Watching(Observer):
    """Notes the hooks; each says whether a lock is held."""

    def __init__(self, runtime: CountingRuntime) -> None:
        self.runtime = runtime
        self.calls: list[str] = []

    def _called(self, hook: str) -> None:
        self.runtime.no_lock_held(f"observer.{hook}")
        self.calls.append(hook)

    def connected(self, nsqd_address: str) -> None:
        self._called("connected")

    def lost(self, nsqd_address: str, reason: Exception) -> None:
        self._called("lost")

    def backoff(self, level: int, seconds: float) -> None:
        self._called("backoff")

    def gave_up(self, message: Message, error: BaseException | None) -> None:
        self._called("gave_up")

    def batch(self, nsqd_address: str, finished: int, failed: int, seconds: float) -> None:
        self._called("batch")


# -- costs ----------------------------------------------------------------------------------------


def settle(world: World, runtime: CountingRuntime) -> None:
    """Wait until nothing has happened for longer than the sweep and who looks at a loan sleep.

    Both take 0.1 s, and on a busy machine a thread wakes up late.
    """
    before = Counts()
    while before != runtime.counts:
        before = runtime.counts - Counts()
        world.sleep(0.25)


def burst(
    client: Client,
    world: World,
    runtime: CountingRuntime,
    count: int,
    **options: Any,
) -> Counts:
    """What so many messages in one send of nsqd cost, from their arrival to the last FIN.

    After a first burst, which lets the chunks grow.
    """
    options = {"latency": "throughput", "max_in_flight": count, **options}
    with ScriptedNsqd() as nsqd:
        reader = client.consume(lambda message: None, nsqd, **options)
        world.eventually(lambda: nsqd.received("RDY"))
        server = nsqd.connections[0]
        messages = b"".join(message_frame(b"x" * 100) for _ in range(count))
        for n in range(1, 4):
            server.send(messages)
            finished(world, nsqd, n * count)
        settle(world, runtime)
        # The least of them: another process that takes the processor away makes the handler look
        # slow, and the next chunks small; and has a timer look that is counted, too.
        runs = []
        for n in range(4, 7):
            with runtime.measure() as counts:
                server.send(messages)
                finished(world, nsqd, n * count)
                settle(world, runtime)
            runs.append(counts)
        reader.stop(1)
        reader.join()
    return min(runs, key=lambda counts: (counts.hops, counts.locks))


def finished(world: World, nsqd: ScriptedNsqd, count: int) -> None:
    world.eventually(lambda: len(nsqd.received("FIN")) == count)


@pytest.mark.reality("the costs of the real runtimes and of a kernel's sockets")
def test_two_hundred_messages_at_once(
    client: Client, world: World, runtime: CountingRuntime
) -> None:
    """By chunk and not by message: four chunks of up to 64, and few sends with many FINs each."""
    counts = burst(client, world, runtime, 200)
    assert counts.recvs <= 4
    assert counts.hops == 4
    assert counts.sends <= 5
    assert counts.locks <= 15
    assert counts.waits <= 6
    assert counts.spawns == counts.connects == counts.blocking_calls == 0


def test_two_hundred_messages_and_four_workers(
    client: Client, world: World, runtime: CountingRuntime
) -> None:
    counts = burst(client, world, runtime, 200, concurrency=4)
    assert counts.recvs <= 4
    assert counts.hops == 4
    assert counts.sends <= 6
    assert counts.locks <= 16


def test_a_trickling_message(client: Client, world: World, runtime: CountingRuntime) -> None:
    """One receive, one hop; the RDY that makes room goes out on its own, the other with the FIN."""
    with ScriptedNsqd() as nsqd:
        reader = client.consume(lambda m: None, nsqd, max_in_flight=10)
        world.eventually(lambda: nsqd.received("RDY"))
        settle(world, runtime)
        with runtime.measure() as counts:
            for n in range(1, 11):
                nsqd.connections[0].message(b"x")
                finished(world, nsqd, n)
        assert counts.recvs == 10
        assert counts.hops == 10
        assert counts.sends <= 2 * 10 + 2
        reader.stop(1)
        reader.join()


def test_messages_one_by_one(client: Client, world: World, runtime: CountingRuntime) -> None:
    """One receive and one send each, by the worker; the reading thread stands aside."""
    count = 0
    ended = False

    def next_one(connection: scripted.Connection, command: Command) -> None:
        nonlocal count
        count += 1
        if not ended:
            connection.message(b"x" * 100)

    with ScriptedNsqd([automatic(hooks={"FIN": next_one})]) as nsqd:
        reader = client.consume(lambda m: None, nsqd)
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.connections[0].message(b"x" * 100)
        before = count
        with runtime.measure() as counts:
            world.eventually(lambda: count >= before + 200, 60)
        messages = count - before
        ended = True
        # The first ones come by the reading thread.
        assert counts.hops <= 2
        # Those under way at the edges.
        assert abs(counts.recvs - messages) <= 2
        assert abs(counts.sends - messages) <= 2
        # One for each write, and those of housekeeping and of the other thread's look.
        assert counts.locks <= messages + 2 + messages / 20
        assert counts.waits <= 2 + messages / 20
        assert counts.spawns == counts.connects == 0
        reader.stop(1)
        reader.join()


@pytest.mark.reality("the costs of the real runtimes and of a kernel's sockets")
def test_sequential_publishes(client: Client, world: World, runtime: CountingRuntime) -> None:
    """One send and one receive each; the only lock is the one that guards the write.

    The first one is answered by the reading thread, which then steps aside: nobody is woken for
    the others. What waits there are is that thread's look, ten times a second, and the few
    publishes that come when it has just taken over.
    """
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd)
        writer.publish("t", "first")
        settle(world, runtime)
        started = runtime.now()
        with runtime.measure() as counts:
            for _ in range(1000):
                writer.publish("t", "x" * 100)
        looks = 2 + 10 * (runtime.now() - started)
        assert counts.sends == 1000
        assert counts.recvs == 1000
        assert counts.locks == 1000
        # A look may find nothing published for 0.1 s, where the machine is that busy.
        assert counts.waits <= 2 + 3 * looks
        # The turn to read, taken and given back; and the looks.
        assert counts.mutexes <= 2000 + 2 * looks
        assert counts.hops == counts.spawns == counts.connects == 0


@pytest.mark.parametrize("timeout", [0.02, 0.06, 0.2])
def test_the_last_of_a_deadline_is_waited_for_on_an_exact_latch(
    client: Client, world: World, runtime: CountingRuntime, timeout: float
) -> None:
    """The kernel's read timeout counts in ticks of some milliseconds; a latch does not."""

    def hold(connection: scripted.Connection, command: Command) -> None:
        if command.body != b"hold":
            connection.answer(command)

    with ScriptedNsqd([automatic(hooks={"PUB": hold})], [automatic()]) as nsqd:
        writer = client.writer(nsqd)
        waits: list[float] = []
        # On a machine that is busy at that moment the time may be over before the wait.
        while not waits:
            writer.publish("t", "first")
            before = len(runtime.exact_waits)
            started = runtime.now()
            with pytest.raises(PublishError):
                writer.publish("t", "hold", timeout=timeout)
            assert runtime.now() - started >= timeout
            waits = [seconds for seconds in runtime.exact_waits[before:] if seconds]
        assert max(waits) <= 0.05


def test_publishes_of_sixteen(client: Client, world: World, runtime: CountingRuntime) -> None:
    """Who waits is woken once and no more, and what gathers meanwhile shares a send."""
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd)
        writer.publish("t", "first")
        settle(world, runtime)

        def publish() -> None:
            for _ in range(50):
                writer.publish("t", "x" * 100, timeout=60)

        started = runtime.now()
        with runtime.measure() as counts:
            tasks = [world.spawn(publish) for _ in range(16)]
            for task in tasks:
                task.join(60)
        looks = 2 + 10 * (runtime.now() - started)
        assert len(nsqd.received("PUB")) == 801
        assert counts.sends <= 800
        assert counts.recvs <= 800
        if world.name == "gevent":
            # One for all that publish in a turn of the loop, which is up to sixteen.
            assert counts.sends <= 300
        # One wait each; a second one where nsqd has not answered for 5 ms.
        assert counts.waits <= 800 + 800 + 3 * looks
        assert counts.hops == counts.spawns == counts.connects == 0


def test_publish_many(client: Client, world: World, runtime: CountingRuntime) -> None:
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd)
        writer.publish("t", "first")
        settle(world, runtime)
        bodies = [b"x" * 100] * 100
        with runtime.measure() as counts:
            for _ in range(10):
                writer.publish_many("t", bodies)
        assert counts.sends == counts.recvs == counts.locks == 10
        assert counts.bytes_sent == 10 * (len(b"MPUB t\n") + 8 + 100 * (4 + 100))


@pytest.mark.reality("the memory of this process is counted")
def test_publishes_leave_nothing_behind(
    client: Client, world: World, runtime: CountingRuntime
) -> None:
    """Without the cyclic collector: no publish is part of a cycle, and no table grows."""
    with ScriptedNsqd() as nsqd:
        nsqd.record = lambda connection, command: None  # type: ignore[method-assign]
        writer = client.writer(nsqd)
        for _ in range(50):
            writer.publish("t", b"x")
        gc.collect()
        gc.disable()
        try:
            before = sys.getallocatedblocks()
            for _ in range(1000):
                writer.publish("t", b"x")
            grown = sys.getallocatedblocks() - before
        finally:
            gc.enable()
        # Each has a slot, a command and more; ten blocks a publish would be 10,000.
        assert grown < 500


def test_an_idle_writer_does_nothing(
    client: Client, world: World, runtime: CountingRuntime
) -> None:
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd)
        writer.publish("t", "x")
        settle(world, runtime)
        with runtime.measure() as counts:
            world.sleep(0.5)
        assert counts == Counts()


def test_publishes_without_waiting_share_sends(
    client: Client, world: World, runtime: CountingRuntime
) -> None:
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd)
        writer.connect()
        publisher = writer._publisher()
        send_queue = publisher.pool.table.connections()[0].send_queue
        futures: list[Future[None]] = []
        with runtime.measure() as counts:
            # As if another thread were writing meanwhile, so not counted as this one's.
            with send_queue._lock._inner:  # type: ignore[attr-defined]
                futures += [writer.publish_async("t", f"{n}") for n in range(1000)]
                assert counts.sends == 0
            futures.append(writer.publish_async("t", "the last"))
            world.eventually(lambda: all(future.done() for future in futures))
        assert counts.sends == 1
        assert counts.recvs <= 1001
        assert [future.result(0) for future in futures] == [None] * 1001


def test_an_idle_reader_does_nothing(
    client: Client, world: World, runtime: CountingRuntime
) -> None:
    with ScriptedNsqd() as nsqd:
        client.consume(lambda m: None, nsqd)
        world.eventually(lambda: nsqd.received("RDY"))
        settle(world, runtime)
        with runtime.measure() as counts:
            # Longer than a second, as what waits with a limit looks once in it.
            world.sleep(1.3)
        assert counts == Counts()


# -- rules ----------------------------------------------------------------------------------------


def test_handlers_and_hooks_run_outside_all_locks(
    client: Client, world: World, runtime: CountingRuntime
) -> None:
    observer = Watching(runtime)

    @runtime.user_code
    def handler(message: Message) -> None:
        if message.body == b"bad":
            raise ValueError
        if message.body == b"later":
            raise Requeue(backoff=False)
        if message.body == b"itself":
            message.touch()
            message.requeue()
        if message.body == b"kept":
            message.detach()
            world.spawn(message.finish)

    @runtime.user_code
    def on_giving_up(message: Message, error: BaseException | None) -> None:
        """The hook."""

    @runtime.user_code
    def strategy(level: int) -> float:
        return 0.02

    with ScriptedNsqd() as nsqd, ScriptedNsqd() as other:
        reader = client.consume(
            handler,
            nsqd,
            other,
            concurrency=2,
            max_in_flight=20,
            observer=observer,
            on_giving_up=on_giving_up,
            dead_letter_topic="dead",
            max_deliveries=5,
            auto_touch=True,
            backoff="every_failure",
        )
        world.eventually(lambda: nsqd.received("RDY") and other.received("RDY"))
        server = nsqd.connections[0]
        for body in (b"good", b"later", b"kept", b"bad", b"itself", b"good"):
            server.message(body)
        server.message(b"spent", attempts=6)
        server.message(b"bad", attempts=5)
        server.message(b"itself", attempts=5)
        world.eventually(lambda: len(nsqd.received("FIN")) == 6)
        world.eventually(lambda: len(nsqd.received("REQ")) == 3)
        reader.pause()
        reader.resume()
        reader.set_max_in_flight(5)
        assert reader.is_starved in (True, False)
        reader.stats()
        server.shutdown()
        world.eventually(lambda: observer.calls.count("connected") == 3)
        assert set(observer.calls) == {"connected", "lost", "backoff", "gave_up", "batch"}
        reader.stop(5)
        reader.join()
    # The strategy is arithmetic and runs under the reader's lock, as its documentation says.
    assert strategy(1) == 0.02


def test_observers_that_raise_change_nothing(
    client: Client, world: World, runtime: CountingRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    class Raising(Watching):
        def _called(self, hook: str) -> None:
            super()._called(hook)
            raise ValueError("from the hook")

    observer = Raising(runtime)

    def handler(message: Message) -> None:
        if message.body == b"bad":
            raise ValueError

    with ScriptedNsqd() as nsqd:
        reader = client.consume(
            handler,
            nsqd,
            observer=observer,
            max_in_flight=3,
            backoff_multiplier=0.01,
            backoff="every_failure",
            max_deliveries=5,
            on_giving_up="discard",
        )
        world.eventually(lambda: nsqd.received("RDY"))
        server = nsqd.connections[0]
        server.message(b"spent", attempts=6)
        server.message(b"bad")
        server.message(b"good")
        world.eventually(lambda: len(nsqd.received("FIN")) == 2 and len(nsqd.received("REQ")) == 1)
        nsqd.drop_connections()
        world.eventually(lambda: reader.stats().connections and len(nsqd.connections) == 2)
        assert set(observer.calls) == {"connected", "lost", "backoff", "gave_up", "batch"}
        assert "from the hook" in caplog.text
        reader.stop(1)
        reader.join()


def test_a_writer_that_loses_dials_and_closes(
    client: Client, world: World, runtime: CountingRuntime
) -> None:
    """Publishes from many sides over connections that are lost all the time."""

    def sometimes(connection: scripted.Connection, command: Command) -> None:
        connection.answer(command)
        if (command.body or b"").endswith(b"5"):
            scripted.reset()(connection)

    step = automatic(hooks={"PUB": sometimes})
    with ScriptedNsqd([step]) as one, ScriptedNsqd([step]) as two:
        writer = client.writer(one, two)

        def publish(who: int) -> None:
            for n in range(40):
                try:
                    writer.publish("t", f"{who}-{n}", timeout=1)
                except PublishError:
                    pass

        @runtime.user_code
        def called_back(future: Future[None]) -> None:
            """A callback of the user."""

        tasks = [world.spawn(publish, who) for who in range(4)]
        future = writer.publish_async("t", "x")
        future.add_done_callback(called_back)
        for task in tasks:
            task.join(60)
        world.eventually(future.done)
        writer.stats()
        writer.close()


@pytest.mark.reality("TLS")
def test_tls(
    client: Client, world: World, runtime: CountingRuntime, certificates: Certificates
) -> None:
    """The one lock that may be taken under another is TLS's own."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert_file, certificates.key_file)
    with ScriptedNsqd(tls=context) as nsqd:
        secure = {"tls": True, "tls_ca_file": str(certificates.ca_file)}
        handler = runtime.user_code(lambda message: None)
        reader = client.consume(handler, nsqd, max_in_flight=5, **secure)
        world.eventually(lambda: nsqd.received("RDY"))
        for _ in range(5):
            nsqd.connections[0].message(b"x")
        finished(world, nsqd, 5)
        writer = client.writer(nsqd, **secure)
        for _ in range(5):
            writer.publish("t", "x")
        writer.close()
        reader.stop()
        reader.join()


def test_discovery_and_groups(client: Client, world: World, runtime: CountingRuntime) -> None:
    """A lookup is a blocking call, and is made under no lock."""
    with ScriptedNsqd() as nsqd, socket.socket() as lookupd:
        lookupd.bind(("127.0.0.1", 0))
        host, port = lookupd.getsockname()
        lookup = {"lookupd_http_addresses": f"{host}:{port}"}
        readers = [
            client.reader(runtime.user_code(print), nsqd, shared=True, **lookup),
            client.reader(runtime.user_code(print), nsqd, shared=True),
        ]
        group = ReaderGroup(readers, max_in_flight=4, runtime=runtime)
        group.start(block=False)
        world.eventually(lambda: len(nsqd.received("RDY")) >= 2)
        world.eventually(lambda: runtime.counts.blocking_calls)
        group.stop()
        assert all(result.clean for result in group.join())


def test_the_pull_form(client: Client, world: World, runtime: CountingRuntime) -> None:
    with ScriptedNsqd() as nsqd:
        with client.reader(None, nsqd, max_in_flight=4) as reader:
            batches = reader.batches(4, 0.05)
            world.eventually(lambda: nsqd.received("RDY"))
            for _ in range(4):
                nsqd.connections[0].message(b"x")
            taken: list[Message] = []
            while len(taken) < 4:
                taken += next(batches)
                runtime.no_lock_held("the user's loop")
            for message in taken[:3]:
                message.finish()
        finished(world, nsqd, 3)
        # What was not answered when the block was left.
        world.eventually(lambda: len(nsqd.received("REQ")) == 1)


def test_a_reader_that_ends_by_itself(
    client: Client, world: World, runtime: CountingRuntime
) -> None:
    def refuse(connection: scripted.Connection, command: Command) -> None:
        connection.error("E_BAD_CHANNEL SUB channel name is not valid")
        scripted.close()(connection)

    with ScriptedNsqd([automatic(hooks={"SUB": refuse})]) as nsqd:
        reader = client.consume(print, nsqd)
        with pytest.raises(NSQError):
            reader.join(10)
        assert address(nsqd)
    assert threading.active_count()
