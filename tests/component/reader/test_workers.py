"""Chunks from reading threads to workers: how large they are, and what becomes of each message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnsqsync import Message, Requeue
from gnsqsync.connection.in_flight import InFlight
from gnsqsync.discovery.lookups import Lookups
from gnsqsync.message import ANSWERED, Fate, Uncalled
from gnsqsync.options import ConnectionOptions
from gnsqsync.policy import ownership
from gnsqsync.policy.backoff import Backoff
from gnsqsync.reader.chunks import Chunks
from gnsqsync.reader.options import ReaderOptions, ReaderSetup
from gnsqsync.reader.tries import Tries
from gnsqsync.reader.workers import Workers
from gnsqsync.runtime import choose
from tests.support.worlds import World


class FakeConnection:
    """What the workers see of a connection; it is its own send_queue."""

    nsqd_address = "fake:4150"
    msg_timeout = 60.0

    def __init__(self) -> None:
        self.in_flight = InFlight()
        self.delivers = True
        self.worker_may_read = False
        self.fins: list[bytes] = []
        self.requeued: list[tuple[bytes, float | None]] = []
        self.flushes = 0
        self.count = 0

    @property
    def send_queue(self) -> Any:
        return self

    def flush(self, wait: float = 0.0) -> None:
        self.flushes += 1

    def take(self, message: Message, status: int = ANSWERED) -> bool:
        if not self.in_flight.take(message):
            return False
        message._status |= status
        return True

    def requeue_quietly(self, message: Message, delay: float | None) -> bool:
        if not self.take(message):
            return False
        self.requeued.append((message.body, delay))
        return True

    def hand_back(self, message: Message) -> None:
        self.requeue_quietly(message, 0)

    def requeue_delay_for(self, message: Message) -> float:
        return 90.0 * message.attempts

    def messages(self, *bodies: bytes, attempts: int = 1) -> list[Message]:
        made = []
        for body in bodies:
            self.count += 1
            made.append(Message(b"%016d" % self.count, body, attempts, 0, self))  # type: ignore[arg-type]
        self.in_flight.update((message._id, message) for message in made)
        return made


class Bench:
    """Workers that work; it is what they call: Subscription, DeadLetters and Events."""

    observes_batches = True

    def __init__(self, world: World) -> None:
        self.world = world
        self.connection = FakeConnection()
        self.backoff = Backoff()
        # Of each chunk: how many were finished, and failed.
        self.chunks: list[tuple[int, int]] = []
        # The same, as the backoff is told.
        self.noted: list[tuple[int, int]] = []
        self.sent = 0
        self.ended = 0
        self.given_up: list[tuple[bytes, BaseException | None]] = []
        self.killers: dict[str, BaseException] = {}
        self.tries: Any = None
        self.fate_of: Callable[[Message], Fate] = lambda message: Fate.FINISHED
        self.workers: Any = None

    def make(self, handler: Callable[[Message], object] | None, **options: Any) -> None:
        middleware = options.pop("middleware", ())
        flow = ReaderOptions(**{"concurrency": 1, "on_giving_up": "discard", **options})
        setup = ReaderSetup(
            topic="orders",
            channel="shop",
            handler=handler,
            nsqds=(),
            lookups=Lookups(
                urls=(),
                poll_interval=60.0,
                poll_jitter=0.3,
                authorization=None,
                new_session=None,
                options=ConnectionOptions(),
            ),
            flow=flow,
            options=ConnectionOptions(),
            observers=(),
            runtime=None,
            middleware=middleware,
        )
        runtime = choose(self.world.runtime)
        self.queued = Chunks(runtime.queue(), runtime, cuts=True)
        self.tries = Tries(runtime, flow.max_attempts)
        self.workers = Workers(runtime, self.queued, self, self, self, setup, self.after)  # type: ignore[arg-type]

    def start(self, handler: Callable[[Message], object] | None, **options: Any) -> None:
        self.make(handler, **options)
        self.workers.start()

    def put(self, *bodies: bytes, attempts: int = 1) -> list[Message]:
        messages = self.connection.messages(*bodies, attempts=attempts)
        self.queued.put(self.connection, messages)  # type: ignore[arg-type]
        return messages

    def idle(self) -> None:
        """Wait until everything is answered."""
        self.world.eventually(lambda: not self.connection.in_flight)

    def after(self, seconds: float, job: Callable[[], None]) -> None:
        raise AssertionError("no timer is needed without time_limit")

    @property
    def pauses(self) -> Any:
        return self

    @property
    def evidence(self) -> Any:
        return self.backoff.evidence

    def judged(self, successes: int) -> None:
        self.noted.append((successes, 0))

    def failed(self, connection: Any, message: Message, counts: bool) -> None:
        self.noted.append((0, int(counts)))

    def left(self) -> float:
        return 0.0

    def batch(self, connection: Any, finished: int, failed: int, seconds: float) -> None:
        self.chunks.append((finished, failed))

    def settle(self, connection: Any, message: Message, error: BaseException | None) -> Fate:
        self.given_up.append((message.body, error))
        fate = self.fate_of(message)
        if fate is Fate.FINISHED:
            assert connection.take(message)
            connection.fins.append(message._id)
        else:
            assert connection.requeue_quietly(message, 900 if fate is Fate.KEPT else None)
        return fate

    def note_deadly(self, message: Message, error: BaseException) -> None:
        self.killers[message.id] = error

    def deadly(self, message: Message) -> BaseException | None:
        return self.killers.get(message.id)

    def answered(self) -> None:
        self.sent += 1

    def settled(self) -> None:
        self.ended += 1


@pytest.fixture
def bench(world: World) -> Iterator[Bench]:
    bench = Bench(world)
    yield bench
    bench.workers.stop()
    assert bench.workers.join(bench.workers._runtime.now() + 10) == 0
    assert bench.workers.working == 0


def test_chunks_grow_with_a_fast_handler_and_shrink_with_a_slow_one(
    bench: Bench, world: World
) -> None:
    pause = 0.0

    def handler(message: Message) -> None:
        if pause:
            world.sleep(pause)

    bench.start(handler)
    bench.put(*[b"x"] * 8)
    bench.idle()
    world.eventually(lambda: len(bench.chunks) == 8)
    # It starts with one message a chunk; what comes next, comes by the pace measured.
    assert bench.chunks == [(1, 0)] * 8
    for _ in range(40):
        bench.put(*[b"x"] * 64)
        bench.idle()
    assert max(finished for finished, _ in bench.chunks) > 16
    assert all(finished <= 64 for finished, _ in bench.chunks)
    pause = 0.005
    bench.put(*[b"x"] * 64)
    bench.idle()
    before = len(bench.chunks)
    bench.put(*[b"x"] * 4)
    bench.idle()
    world.eventually(lambda: len(bench.chunks) >= before + 4)
    assert bench.chunks[-4:] == [(1, 0)] * 4


def test_kept_answers_are_sent_when_another_worker_has_the_next_chunk(
    bench: Bench, world: World
) -> None:
    bench.make(lambda message: None, concurrency=2)
    # As each worker sees it before another one takes the last chunk.
    bench.queued.queue.empty = lambda: False
    bench.workers.start()
    bench.put(b"x")
    world.eventually(lambda: bench.connection.flushes == 1 and bench.sent == 1)


def test_slow_messages_are_shared_one_by_one(bench: Bench, world: World) -> None:
    at_work: list[bytes] = []

    def handler(message: Message) -> None:
        at_work.append(message.body)
        world.eventually(lambda: len(at_work) == 4)

    bench.start(handler, concurrency=4)
    bench.put(b"a", b"b", b"c", b"d")
    bench.idle()
    assert sorted(at_work) == [b"a", b"b", b"c", b"d"]


def test_messages_behind_a_slow_one_go_to_idle_workers(bench: Bench, world: World) -> None:
    done: list[bytes] = []

    def handler(message: Message) -> None:
        if message.body == b"slow":
            world.eventually(lambda: len(done) == 8)
        done.append(message.body)

    bench.start(handler, concurrency=4)
    # One chunk, as for a handler that has been fast so far.
    bench.queued._pace = 1e-6
    bench.put(b"fast", b"slow", *[b"%d" % number for number in range(7)])
    world.eventually(lambda: done == [b"fast"])
    assert bench.queued._pace == 1e-6
    world.sleep(0.01)
    bench.queued.relieve()
    bench.idle()
    assert (done[0], done[-1]) == (b"fast", b"slow")
    assert sorted(done[1:-1]) == [b"%d" % number for number in range(7)]
    world.eventually(lambda: sum(finished for finished, _ in bench.chunks) == 9)
    # Cut anew, since the message that takes so long has changed the pace.
    assert sorted(bench.chunks) == [(1, 0)] * 7 + [(2, 0)]


def test_a_chunk_whose_worker_was_not_scheduled_is_done_by_another_one(
    bench: Bench, world: World
) -> None:
    bench.make(lambda message: None, concurrency=2)
    held, go_on = [], bench.workers._runtime.latch()
    handle = bench.workers._handle

    def late(connection: Any, new_context: Any, left: Iterator[Message], started: float) -> bool:
        held.append(left)
        if len(held) == 1:
            go_on.wait(15.0)
        return bool(handle(connection, new_context, left, started))

    bench.workers._handle = late
    bench.queued._pace = 1e-6
    bench.workers.start()
    bench.put(b"a", b"b")
    world.eventually(lambda: held)
    world.sleep(0.01)
    bench.queued.relieve()
    bench.idle()
    assert bench.queued._pace <= 1e-3
    go_on.release()
    bench.put(b"c")
    bench.idle()
    world.eventually(lambda: not bench.queued._at_work)
    assert sum(finished for finished, _ in bench.chunks) == 3


def test_nothing_is_taken_from_a_worker_while_others_have_work(bench: Bench, world: World) -> None:
    done: list[bytes] = []
    going = False

    def handler(message: Message) -> None:
        world.eventually(lambda: going)
        done.append(message.body)

    bench.start(handler, concurrency=2)
    bench.queued._pace = 1e-6
    bench.put(b"a", b"b")
    bench.put(b"c", b"d")
    bench.put(b"e", b"f")
    world.eventually(lambda: len(bench.queued._at_work) == 2)
    world.sleep(0.01)
    bench.queued.relieve()
    going = True
    bench.idle()
    world.eventually(lambda: len(bench.chunks) == 3)
    assert bench.chunks == [(2, 0)] * 3


def test_each_end_of_a_handler(bench: Bench) -> None:
    def handler(message: Message) -> None:
        if message.body == b"later":
            raise Requeue(delay=7)
        if message.body == b"busy":
            raise Requeue(backoff=False)
        if message.body == b"bad":
            raise ValueError
        if message.body == b"exit":
            raise SystemExit
        if message.body == b"kept":
            message.detach()

    bench.start(handler)
    bodies = [b"good", b"later", b"busy", b"bad", b"exit"]
    messages = bench.put(b"kept", *bodies)
    bench.world.eventually(lambda: len(bench.chunks) == 6)
    assert bench.connection.requeued == [
        (b"later", 7),
        (b"busy", None),
        (b"bad", None),
        (b"exit", None),
    ]
    assert len(bench.connection.fins) == 1
    assert list(bench.connection.in_flight.values()) == [messages[0]]
    assert [sum(column) for column in zip(*bench.chunks, strict=True)] == [1, 3]
    assert bench.workers.working == 1
    bench.connection.in_flight.clear()


def test_only_calls_are_tries(bench: Bench) -> None:
    """A message whose handler was not called twice has two tries more than one that was called."""
    calls: list[int] = []

    def handler(message: Message) -> None:
        if message.body == b"away" and message.attempts <= 2:
            raise Uncalled from OSError("the database is away")
        calls.append(message.attempts)
        raise ValueError(message.attempts)

    bench.start(handler, max_attempts=3)
    for attempts in range(1, 6):
        for body in (b"away", b"here"):
            if body == b"away" or attempts <= 3:
                message = Message(body * 4, body, attempts, 0, bench.connection)  # type: ignore[arg-type]
                bench.connection.in_flight[message._id] = message
                bench.queued.put(bench.connection, [message])  # type: ignore[arg-type]
        bench.idle()
    assert [(body, str(error)) for body, error in bench.given_up] == [
        (b"here", "3"),
        (b"away", "5"),
    ]
    assert calls == [1, 2, 3, 3, 4, 5]
    # The failure counts for the backoff.
    bench.world.eventually(lambda: sum(failed for _, failed in bench.chunks) == 8)
    assert len(bench.noted) == 8


def test_messages_of_a_lost_connection_are_not_handled(bench: Bench, world: World) -> None:
    handled: list[bytes] = []
    release: list[bool] = []

    def handler(message: Message) -> None:
        handled.append(message.body)
        if message.body == b"first":
            world.eventually(lambda: release)

    bench.start(handler)
    first, *_ = bench.put(b"first", b"second", b"third")
    world.eventually(lambda: handled)
    bench.connection.delivers = False
    bench.connection.in_flight.clear()
    release.append(True)
    other, bench.connection = bench.connection, FakeConnection()
    bench.put(b"another")
    bench.idle()
    assert handled == [b"first", b"another"]
    # Nothing is answered on it, not even what the handler has done.
    assert (other.fins, other.requeued) == ([], [])
    assert not first.is_answered


class Killed(BaseException):
    """Ends a worker in these tests, as GreenletExit ends a greenlet."""


@pytest.fixture
def killing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "gnsqsync.reader.workers.ends_worker", lambda error: isinstance(error, Killed)
    )


def fast(bench: Bench) -> None:
    """Make the worker so fast that the next messages come in one chunk."""
    bench.queued._pace = 1e-6


@pytest.mark.usefixtures("killing")
@pytest.mark.parametrize("ends_in", ["handler", "give up"])
def test_a_killed_worker_is_replaced_and_its_chunk_goes_back(
    bench: Bench, world: World, ends_in: str
) -> None:
    def kill(message: Message) -> Fate:
        if message.body == b"kill":
            raise Killed
        return Fate.FINISHED

    bench.fate_of = kill
    bench.start(kill, concurrency=2, max_deliveries=5)
    fast(bench)
    bench.put(b"good", b"kill", b"rest", b"of it", attempts=6 if ends_in == "give up" else 1)
    bench.idle()
    assert len(bench.connection.fins) == 1
    assert bench.connection.requeued == [(b"kill", None), (b"rest", 0), (b"of it", 0)]
    assert bench.connection.flushes >= 1
    world.eventually(lambda: bench.ended == 1)
    assert bench.workers.working == 2
    # Each kill takes one; as many as there were are left to work.
    for _ in range(3):
        bench.put(b"kill")
        bench.idle()
    bench.put(b"good")
    bench.idle()
    assert len(bench.connection.fins) == 2
    world.eventually(lambda: bench.ended == 4)
    assert bench.workers.working == 2


def test_an_error_of_a_log_filter_ends_a_worker_and_loses_no_message(
    bench: Bench, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any) -> None:
        raise KeyError("tenant")

    def handler(message: Message) -> None:
        if message.body == b"bad":
            raise ValueError

    bench.make(handler)
    monkeypatch.setattr("gnsqsync.reader.failures.Failures._log_failure", broken)
    bench.workers.start()
    fast(bench)
    bench.put(b"good", b"bad", b"rest")
    bench.idle()
    assert bench.connection.requeued == [(b"bad", None), (b"rest", 0)]
    bench.put(b"good")
    bench.idle()
    assert len(bench.connection.fins) == 2


def test_a_message_that_ends_its_worker_is_given_up_on_the_next_delivery(
    bench: Bench, killing: None
) -> None:
    error = Killed()
    calls: list[int] = []

    def kill(message: Message) -> None:
        calls.append(message.attempts)
        raise error

    bench.start(kill, max_attempts=3)
    for attempts in (2, 3, 4):
        # nsqd keeps the id.
        bench.connection.count = 0
        bench.put(b"deadly", attempts=attempts)
        bench.idle()
    assert calls == [2, 3]
    assert bench.given_up == [(b"deadly", error)]
    assert bench.connection.requeued == [(b"deadly", None)] * 2
    assert len(bench.connection.fins) == 1


class Odd(Requeue):
    """Sets what the constructor of Requeue refuses."""

    delay = "soon"  # type: ignore[assignment]

    def __init__(self) -> None:
        Exception.__init__(self)


def test_a_requeue_with_an_invalid_delay_fails_as_any_exception(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(message: Message) -> None:
        raise Odd

    bench.start(handler)
    bench.put(b"x")
    bench.idle()
    assert bench.connection.requeued == [(b"x", None)]
    assert "Odd is 'soon'; it must be None or seconds, 0 or more" in caplog.text
    assert bench.workers.working == 1


class Later(Requeue):
    """One with a constructor of its own."""

    def __init__(self, why: str) -> None:
        Exception.__init__(self, why)


def test_a_handler_that_returns_code_that_nobody_runs_has_failed(bench: Bench) -> None:
    async def work() -> None:
        raise AssertionError("nobody runs it")

    def handler(message: Message) -> object:
        return work() if message.body == b"unrun" else b"a value means nothing"

    bench.start(handler)
    bench.put(b"unrun", b"value")
    bench.idle()
    assert [body for body, _ in bench.connection.requeued] == [b"unrun"]
    assert len(bench.connection.fins) == 1


def test_a_requeue_whose_subclass_calls_no_constructor(bench: Bench) -> None:
    def handler(message: Message) -> None:
        raise Later("the database is away")

    bench.start(handler)
    bench.put(b"x")
    bench.idle()
    assert bench.connection.requeued == [(b"x", None)]
    assert bench.chunks == [(0, 1)]


@pytest.mark.usefixtures("killing")
def test_workers_that_ended_are_forgotten(bench: Bench, world: World) -> None:
    def kill(message: Message) -> None:
        raise Killed

    bench.start(kill)
    for count in range(1, 6):
        bench.put(b"x")
        world.eventually(lambda: bench.ended == count)  # noqa: B023
    # The one that works, and of those before it the last, which may not have ended quite.
    assert len(bench.workers._tasks) <= 2


@pytest.mark.usefixtures("killing")
def test_in_the_child_of_a_fork_no_worker_takes_the_place_of_another(
    bench: Bench, world: World
) -> None:
    """gevent ends greenlets that the fork has copied, and they were not killed by a handler."""
    told: list[None] = []

    class Handler:
        def __call__(self, message: Message) -> None:
            bench.workers.abandon()
            raise Killed

        def worker_ended(self) -> None:
            told.append(None)

    bench.start(Handler())
    bench.put(b"x")
    world.eventually(lambda: bench.workers.working == 0)
    # Its connections to databases are the parent's.
    assert told == []


@pytest.mark.usefixtures("killing")
def test_a_replacement_may_begin_before_the_killed_worker_has_ended(
    bench: Bench, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handler(message: Message) -> None:
        if message.body == b"kill":
            raise Killed
        begun.release()
        assert go_on.wait(10)

    bench.start(handler)
    begun, go_on = bench.workers._runtime.latch(), bench.workers._runtime.latch()
    spawn = bench.workers._spawn

    def spawn_and_wait() -> None:
        spawn()
        assert begun.wait(10)

    monkeypatch.setattr(bench.workers, "_spawn", spawn_and_wait)
    bench.put(b"kill")
    bench.put(b"good")
    world.eventually(lambda: bench.ended == 1)
    go_on.release()
    bench.idle()
    bench.put(b"another")
    bench.idle()
    assert (len(bench.connection.fins), bench.ended) == (2, 1)


@pytest.mark.usefixtures("killing")
def test_each_worker_tells_the_handler_of_its_end_on_its_own_thread(
    bench: Bench, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Handler:
        def __init__(self) -> None:
            self.worked: set[int] = set()
            self.ended: list[int] = []

        def __call__(self, message: Message) -> None:
            self.worked.add(bench.workers._runtime.current())
            if message.body == b"die":
                raise Killed

        def worker_ended(self) -> None:
            self.ended.append(bench.workers._runtime.current())
            # Still counted, so that a stop waits for it.
            assert bench.workers.working
            raise ValueError("is logged")

    handler = Handler()
    bench.start(handler, concurrency=2)
    bench.put(b"die")
    world.eventually(lambda: handler.ended)
    assert set(handler.ended) == handler.worked
    for _ in range(20):
        bench.put(b"x")
    bench.idle()
    bench.workers.stop()
    world.eventually(lambda: not bench.workers.working)
    assert len(handler.ended) == 3
    assert set(handler.ended) >= handler.worked
    assert caplog.text.count("ValueError: is logged") == 3


class TimeOver(BaseException):
    """As gevent.Timeout: no Exception."""


@pytest.mark.parametrize("error", [SystemExit, TimeOver])
def test_a_stop_waits_for_no_worker_whose_last_call_ended_it(
    bench: Bench, world: World, error: type[BaseException]
) -> None:
    class Handler:
        def __call__(self, message: Message) -> None:
            pass

        def worker_ended(self) -> None:
            raise error

    bench.start(Handler())
    bench.workers.stop()
    world.eventually(lambda: not bench.workers.working)
    assert bench.ended == 1


FAILURES = [
    ValueError("oops"),
    SystemExit(1),
    Requeue(7),
    asyncio.CancelledError(),
    GeneratorExit(),
    TimeOver(),
]


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_the_limit_of_attempts(bench: Bench, error: BaseException) -> None:
    """Looked at behind a failure, and with it in hand."""

    def handler(message: Message) -> None:
        raise error

    fates = {b"done": Fate.FINISHED, b"hook failed": Fate.REQUEUED, b"kept": Fate.KEPT}
    bench.fate_of = lambda message: fates[message.body]
    bench.start(handler, max_attempts=3)
    bench.put(b"not yet", attempts=2)
    bench.put(b"done", b"hook failed", attempts=3)
    bench.put(b"kept", attempts=65535)
    bench.idle()
    assert bench.given_up == [(b"done", error), (b"hook failed", error), (b"kept", error)]
    delay = 7 if isinstance(error, Requeue) else None
    assert bench.connection.requeued == [
        (b"not yet", delay),
        (b"hook failed", None),
        (b"kept", 900),
    ]
    assert len(bench.connection.fins) == 1
    bench.world.eventually(lambda: len(bench.chunks) == 4)
    # What is kept is no news for the backoff; what is given up failed as any other.
    assert [sum(column) for column in zip(*bench.noted, strict=True)] == [0, 3]
    assert [sum(column) for column in zip(*bench.chunks, strict=True)] == [0, 4]
    assert bench.workers.working == 1


def test_a_message_on_which_no_handler_failed_is_not_given_up(bench: Bench) -> None:
    def handler(message: Message) -> None:
        if message.body == b"not now":
            raise Requeue(backoff=False)
        if message.body == b"answered":
            bench.connection.requeue_quietly(message, 1)

    bench.start(handler, max_attempts=3)
    bench.put(b"good", b"not now", b"answered", attempts=60)
    bench.idle()
    assert bench.given_up == []
    assert len(bench.connection.fins) == 1
    assert bench.connection.requeued == [(b"not now", None), (b"answered", 1)]


def test_the_limit_of_deliveries_is_looked_at_before_the_handler(bench: Bench) -> None:
    handled: list[bytes] = []
    fates = {b"done": Fate.FINISHED, b"hook failed": Fate.REQUEUED}
    bench.fate_of = lambda message: fates[message.body]
    bench.start(lambda message: handled.append(message.body), max_deliveries=3)
    bench.put(b"last chance", attempts=3)
    bench.put(b"done", b"hook failed", attempts=4)
    bench.idle()
    assert handled == [b"last chance"]
    assert bench.given_up == [(b"done", None), (b"hook failed", None)]
    assert bench.connection.requeued == [(b"hook failed", None)]
    assert len(bench.connection.fins) == 2
    bench.world.eventually(lambda: len(bench.chunks) == 3)
    assert [sum(column) for column in zip(*bench.chunks, strict=True)] == [1, 0]


def test_without_a_limit_nothing_is_given_up(bench: Bench) -> None:
    handled: list[int] = []

    def handler(message: Message) -> None:
        handled.append(message.attempts)
        raise ValueError

    bench.start(handler, max_attempts=0)
    bench.put(b"x", attempts=65535)
    bench.idle()
    assert handled == [65535]
    assert bench.given_up == []


def test_a_message_that_was_orphaned_while_handled_is_not_finished(
    bench: Bench, world: World
) -> None:
    bench.start(lambda message: bench.connection.in_flight.clear())
    bench.put(b"x")
    world.eventually(lambda: bench.chunks)
    assert bench.connection.fins == []
    assert bench.chunks == [(0, 0)]


def test_messages_that_a_worker_took_and_lost_go_back(
    bench: Bench, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception from outside hit the worker between the queue and the handler."""
    monkeypatch.setattr(ownership, "GRACE_SECONDS", 0.2)
    bench.make(lambda message: None)
    lost, waits = bench.put(b"lost"), bench.put(b"waits")
    now = bench.workers._runtime.now()
    for message in [*lost, *waits]:
        message._received_at = now
    bench.queued.queue.get_nowait()
    connections: list[Any] = [bench.connection]
    world.sleep(0.25)
    bench.queued.requeue_lost(connections)
    assert not bench.connection.requeued, "something waits, so a worker may be about to take both"
    bench.workers.start()
    world.eventually(lambda: bench.chunks)
    bench.queued.requeue_lost(connections)
    assert bench.connection.requeued == [(b"lost", 0)]
    assert len(bench.connection.fins) == 1


def test_a_message_at_work_is_not_lost_however_long_it_takes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "GRACE_SECONDS", 0.0)
    looked: list[object] = []
    queued: list[Chunks] = []

    def handler(message: Message) -> None:
        queued[0].requeue_lost([bench.connection])  # type: ignore[list-item]
        looked.append(list(bench.connection.requeued))

    bench.make(handler)
    queued.append(bench.queued)
    bench.queued._pace = 1e-6
    bench.put(b"a", b"b")
    bench.workers.start()
    bench.idle()
    assert looked == [[], []]
    assert len(bench.connection.fins) == 2


@pytest.mark.usefixtures("killing")
def test_a_worker_that_was_killed_in_its_end_is_replaced(
    bench: Bench, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handler(message: Message) -> None:
        raise Killed

    def killed() -> None:
        raise Killed

    bench.make(handler, concurrency=2)
    bench.workers.start()
    spawn = bench.workers._spawn
    monkeypatch.setattr(bench.workers, "_spawn", killed)
    bench.put(b"x")
    world.eventually(lambda: bench.workers.working == 1)
    monkeypatch.setattr(bench.workers, "_spawn", spawn)
    bench.workers.replace_killed()
    assert bench.workers.working == 2
