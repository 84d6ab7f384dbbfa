"""The counting runtime counts, sees every broken rule, and stays silent otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gnsqsync.addresses import Address
from gnsqsync.runtime import Lock, choose
from tests.support.counting import CountingRuntime, Counts
from tests.support.listening import listen

NEEDS = {"sockets"}

HOME = Address("127.0.0.1", 0)
LONG = 20.0


@pytest.fixture(params=["threads", "gevent"])
def runtime(request: pytest.FixtureRequest) -> CountingRuntime:
    return CountingRuntime(choose(request.param))


class Owner:
    """Locks are told apart by the class that makes them."""

    def __init__(self, runtime: CountingRuntime) -> None:
        self.lock = runtime.lock()


class Leaf(Owner):
    pass


LEAF = f"{__name__}.Leaf"


def test_counting_runtime_is_a_runtime(runtime: CountingRuntime) -> None:
    assert choose(runtime) is runtime
    assert runtime.name == runtime.inner.name


def test_a_quiet_program_has_its_counts_and_no_violation(runtime: CountingRuntime) -> None:
    lock, queue, latch = runtime.lock(), runtime.timed_queue(), runtime.latch()
    listener = listen(runtime, HOME)

    def serve() -> None:
        server = listener.accept(LONG)
        server.send(server.recv(100))
        server.close()
        queue.put("done")
        queue.put("really")
        latch.release()

    with runtime.measure() as counts:
        task = runtime.spawn("serve", serve)
        client = runtime.connect(listener.address, LONG)
        client.set_read_timeout(LONG)
        with lock:
            client.send(b"12345")
        assert client.recv(3) == b"123"
        assert client.recv(3) == b"45"
        assert lock.acquire()
        assert not lock.acquire(False)
        lock.release()
        assert latch.wait(LONG)
        assert queue.get(LONG) == "done"
        assert task.join(LONG)
    client.close()
    listener.close()
    assert counts == Counts(
        spawns=1,
        connects=1,
        locks=2,
        failed_tries=1,
        waits=2,
        hops=2,
        sends=1,
        recvs=2,
        bytes_sent=5,
        bytes_received=5,
    )
    runtime.check_ended()
    with runtime.measure() as counts:
        pass
    assert counts == Counts()


def test_a_second_lock_is_a_violation(runtime: CountingRuntime) -> None:
    first, second = Owner(runtime), Owner(runtime)
    with first.lock, second.lock:
        pass
    (text,) = runtime.violations
    assert f"{__name__}.Owner is waited for under {__name__}.Owner" in text
    assert "test_a_second_lock_is_a_violation" in text
    with pytest.raises(AssertionError, match="is waited for under"):
        runtime.check()


def test_a_try_lock_under_a_lock_is_no_violation(runtime: CountingRuntime) -> None:
    first, second = Owner(runtime), Owner(runtime)
    with first.lock:
        assert second.lock.acquire(False)
        second.lock.release()
    runtime.check()


def test_locks_of_two_tasks_are_told_apart(runtime: CountingRuntime) -> None:
    first, second = Owner(runtime), Owner(runtime)
    held, done = runtime.latch(), runtime.latch()

    def hold() -> None:
        first.lock.acquire()
        held.release()
        # The wait is a violation of its own, which is not what this is about.
        done.wait(LONG)
        first.lock.release()

    task = runtime.spawn("hold", hold)
    assert held.wait(LONG)
    with second.lock:
        pass
    assert runtime.no_lock_held()
    done.release()
    assert task.join(LONG)
    assert len(runtime.violations) == 1


def test_a_leaf_may_be_taken_under_another(runtime: CountingRuntime) -> None:
    runtime = CountingRuntime(runtime.inner, leaves=[LEAF])
    outer, leaf = Owner(runtime), Leaf(runtime)
    with outer.lock, leaf.lock:
        pass
    runtime.check()
    with leaf.lock, outer.lock:
        pass
    assert len(runtime.violations) == 1, "something was taken under a leaf"


def call(what: str, runtime: CountingRuntime) -> Callable[[], Any]:
    listener_gone = listen(runtime, HOME)
    listener_gone.close()
    task = runtime.spawn("short", int)
    task.join(LONG)
    queue, event = runtime.queue(), runtime.event()
    queue.put(1)
    event.set()

    def connect() -> None:
        with pytest.raises(ConnectionRefusedError):
            runtime.connect(listener_gone.address, LONG)

    return {
        "connect": connect,
        "call_blocking": lambda: runtime.call_blocking(int),
        "join": task.join,
        "Latch.wait": lambda: runtime.latch().wait(0.01),
        "Event.wait": event.wait,
        "Queue.get": queue.get,
        "user code": runtime.user_code(int),
    }[what]


@pytest.mark.parametrize(
    "what",
    ["connect", "call_blocking", "join", "Latch.wait", "Event.wait", "Queue.get", "user code"],
)
def test_waiting_or_user_code_under_a_lock_is_a_violation(
    runtime: CountingRuntime, what: str
) -> None:
    lock = runtime.lock()
    fn = call(what, runtime)
    with lock:
        fn()
    assert len(runtime.violations) == 1
    assert ("int" if what == "user code" else what) in runtime.violations[0]


@pytest.mark.parametrize("what", ["connect", "call_blocking", "Latch.wait", "user code"])
def test_a_blocking_call_without_a_lock_is_no_violation(
    runtime: CountingRuntime, what: str
) -> None:
    call(what, runtime)()
    runtime.check_ended()


def test_recv_under_a_lock_is_a_violation(runtime: CountingRuntime) -> None:
    listener, lock = listen(runtime, HOME), runtime.lock()
    client = runtime.connect(listener.address, LONG)
    client.shutdown()
    with lock:
        assert client.recv(10) == b""
    assert "recv()" in runtime.violations[0]
    client.close()
    listener.close()


def test_a_lock_that_is_kept_is_seen(runtime: CountingRuntime) -> None:
    lock = Owner(runtime).lock
    lock.acquire()
    with pytest.raises(AssertionError, match=r"Owner is still held"):
        runtime.check()
    lock.release()
    runtime.check()


def test_a_release_by_another_task_is_a_violation(runtime: CountingRuntime) -> None:
    lock: Lock = Owner(runtime).lock
    lock.acquire()
    assert runtime.spawn("release", lock.release).join(LONG)
    assert any("did not take it" in text for text in runtime.violations)


def test_a_task_that_lives_on_is_seen(runtime: CountingRuntime) -> None:
    stop = runtime.event()
    runtime.spawn("nsq-read 127.0.0.1:4150", stop.wait)
    with pytest.raises(AssertionError, match=r"alive after close: .*nsq-read 127\.0\.0\.1:4150"):
        runtime.check_ended(timeout=0.05)
    stop.set()
    runtime.check_ended()


def test_failed_calls_count_too(runtime: CountingRuntime) -> None:
    listener = listen(runtime, HOME)
    client = runtime.connect(listener.address, LONG)
    client.set_read_timeout(0.01)
    with runtime.measure() as counts:
        with pytest.raises(TimeoutError):
            client.recv(10)
    client.close()
    listener.close()
    assert counts == Counts(recvs=1)
