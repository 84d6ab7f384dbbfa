"""One suite for both runtimes: what the floors above rely on holds for threads and greenlets."""

from __future__ import annotations

import errno
import gc
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest

from gnsqsync.addresses import Address
from gnsqsync.errors import ConfigError
from gnsqsync.runtime import Queue, Runtime, Socket, Task, TimedQueue, choose, dial, threads
from tests.support.listening import Listener, listen
from tests.support.ports import REFUSED_PORT

NEEDS = {"sockets"}

HOME = Address("127.0.0.1", 0)
# Long enough for a slow machine; reached only when something is broken.
LONG = 20.0


class Started:
    """A task whose result or exception is fetched later."""

    def __init__(self, runtime: Runtime, fn: Callable[..., Any], *args: Any) -> None:
        self._results = runtime.timed_queue()
        self._running = runtime.latch()
        self.task = runtime.spawn("started", self._run, fn, args)
        assert self._running.wait(LONG)

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._running.release()
        try:
            self._results.put((fn(*args), None))
        except Exception as error:
            self._results.put((None, error))

    def result(self) -> Any:
        value, error = self._results.get(LONG)
        assert self.task.join(LONG)
        if error is not None:
            raise error
        return value


def settle(runtime: Runtime, seconds: float = 0.05) -> None:
    """Let other tasks come to where they block. What follows is right whether they did or not."""
    runtime.event().wait(seconds)


@pytest.fixture
def pair(runtime: Runtime) -> Iterator[tuple[Socket, Socket]]:
    """Two ends of a TCP connection."""
    listener = listen(runtime, HOME)
    client = runtime.connect(listener.address, LONG)
    server = listener.accept(LONG)
    listener.close()
    yield client, server
    for end in (client, server):
        end.shutdown()
        end.close()


def receive(end: Socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = end.recv(65536)
        if not chunk:
            break
        data += chunk
    return data


def fill(end: Socket) -> int:
    """Send until the kernel takes no more."""
    total = 0
    block = bytes(1 << 16)
    while True:
        sent = end.send(block)
        if not sent:
            return total
        total += sent


# choose


def test_unpatched_process_gets_threads() -> None:
    assert choose().name == "threads"
    assert choose(None).name == "threads"


def test_a_runtime_is_returned_as_it_is(runtime: Runtime) -> None:
    assert choose(runtime) is runtime


@pytest.mark.parametrize("value", ["greenlets", "", 3, threading])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"None, 'threads' or 'gevent'"):
        choose(value)


# lock


def test_lock_excludes_until_released(runtime: Runtime) -> None:
    lock = runtime.lock()
    assert not lock.locked()
    with lock:
        assert lock.locked()
        assert not lock.acquire(False)
        assert not lock.acquire(timeout=0.01)
        waiter = Started(runtime, lock.acquire)
        settle(runtime)
        assert waiter.task.alive
    assert waiter.result() is True
    assert lock.locked()
    lock.release()
    assert lock.acquire(blocking=False)
    lock.release()


def test_releasing_a_free_lock_is_an_error(runtime: Runtime) -> None:
    with pytest.raises(RuntimeError):
        runtime.lock().release()


def test_failed_try_lock_does_not_switch() -> None:
    runtime = choose("gevent")
    lock = runtime.lock()
    lock.acquire()
    ran: list[int] = []
    task = runtime.spawn("other", ran.append, 1)
    assert not lock.acquire(False)
    assert not ran
    assert task.join(LONG)


def test_lock_is_released_when_the_block_raises(runtime: Runtime) -> None:
    lock = runtime.lock()
    with pytest.raises(ZeroDivisionError), lock:
        1 / 0
    assert not lock.locked()


# event


def test_event_wakes_all_who_wait(runtime: Runtime) -> None:
    event = runtime.event()
    assert not event.is_set()
    assert event.wait(0.01) is False
    assert event.wait(-1) is False
    waiters = [Started(runtime, event.wait) for _ in range(4)]
    settle(runtime)
    event.set()
    assert [waiter.result() for waiter in waiters] == [True] * 4
    assert event.is_set()
    assert event.wait() is True
    event.clear()
    assert not event.is_set()
    assert event.wait(0) is False


def test_event_can_be_set_by_a_signal_handler(runtime: Runtime) -> None:
    event = runtime.event()
    before = signal.signal(signal.SIGUSR1, lambda *_: event.set())
    try:
        task = runtime.spawn("killer", os.kill, os.getpid(), signal.SIGUSR1)
        assert event.wait(LONG)
        assert task.join(LONG)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_event_set_by_signals_that_interrupt_its_own_wait() -> None:
    """threading.Event hangs here sooner or later: its set() takes the lock of its wait()."""
    event = choose("threads").event()
    calls: list[int] = []

    def set_it(*_: object) -> None:
        calls.append(1)
        event.set()

    before = signal.signal(signal.SIGALRM, set_it)
    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
    try:
        while len(calls) < 500:
            event.wait(0.0002)
            event.clear()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# latch


def test_latch_opens_once_for_everybody(runtime: Runtime) -> None:
    latch = runtime.latch()
    assert not latch.released
    assert latch.wait(0.01) is False
    assert latch.wait(-1) is False
    waiters = [Started(runtime, latch.wait) for _ in range(4)]
    settle(runtime)
    latch.release()
    latch.release()
    assert [waiter.result() for waiter in waiters] == [True] * 4
    assert latch.released
    assert latch.wait() is True
    assert latch.wait(0) is True


def test_rough_latch_opens_and_ends_in_time(runtime: Runtime) -> None:
    latch = runtime.rough_latch()
    assert not latch.released
    assert latch.wait(0) is False
    for _ in range(3):
        started = runtime.now()
        assert latch.wait(0.02) is False
        assert runtime.now() - started >= 0.02
    waiter = Started(runtime, latch.wait, LONG)
    settle(runtime)
    latch.release()
    latch.release()
    assert waiter.result() is True
    assert latch.wait(0) is True
    # For one that is released at the moment when its time is over.
    for _ in range(20):
        latch = runtime.rough_latch()
        waiter = Started(runtime, latch.wait, 0.005)
        settle(runtime, 0.005)
        latch.release()
        assert waiter.result() in (True, False)
        assert latch.released


def test_rough_latch_is_released_by_a_native_thread() -> None:
    runtime = choose("gevent")
    latch = runtime.rough_latch()
    thread = threading.Timer(0.05, latch.release)
    thread.start()
    assert latch.wait(LONG) is True
    thread.join()


def test_gather_lets_those_run_that_are_ready() -> None:
    runtime = choose("gevent")
    order: list[int] = []
    assert runtime.gathers
    tasks = [runtime.spawn(f"{n}", order.append, n) for n in range(5)]
    runtime.gather()
    assert order == [0, 1, 2, 3, 4]
    assert all(task.join(LONG) for task in tasks)


@pytest.mark.parametrize("name", ["gather", "rough latch"])
def test_a_greenlet_killed_in_a_bare_switch_is_not_switched_to_again(name: str) -> None:
    """The wake-up that was on its way must not end the wait that comes next."""
    runtime = choose("gevent")
    latch = runtime.rough_latch()
    ended: list[str] = []

    def wait() -> None:
        try:
            if name == "gather":
                runtime.gather()
            else:
                latch.wait(LONG)
        except gevent.GreenletExit:
            started = runtime.now()
            gevent.sleep(0.05)
            ended.append("early" if runtime.now() - started < 0.05 else "in time")

    victim = gevent.spawn(wait)
    # In this order: it waits, its wake-up is on its way, the exception comes first.
    loop = gevent.get_hub().loop
    loop.run_callback(latch.release)
    loop.run_callback(victim.throw, gevent.GreenletExit)
    victim.join(LONG)
    assert ended == ["in time"]


# queue


@pytest.fixture(params=["queue", "timed_queue"])
def queue(request: pytest.FixtureRequest, runtime: Runtime) -> Queue | TimedQueue:
    made: Queue | TimedQueue = getattr(runtime, request.param)()
    return made


def test_queue_keeps_the_order(runtime: Runtime, queue: Queue) -> None:
    assert queue.empty()
    getter = Started(runtime, lambda: [queue.get() for _ in range(1000)])
    for number in range(1000):
        queue.put(number)
    assert getter.result() == list(range(1000))
    assert queue.empty()


def test_queue_with_several_who_put_and_several_who_get(runtime: Runtime, queue: Queue) -> None:
    getters = [Started(runtime, lambda: list(iter(queue.get, None))) for _ in range(4)]
    putters = [
        Started(runtime, lambda start=start: [queue.put(start + n) for n in range(500)])
        for start in range(1, 2001, 500)
    ]
    for putter in putters:
        putter.result()
    for _ in getters:
        queue.put(None)
    assert sorted(n for getter in getters for n in getter.result()) == list(range(1, 2001))
    assert queue.empty()


def test_queue_gives_at_once_or_not_at_all(queue: Queue) -> None:
    with pytest.raises(TimeoutError):
        queue.get_nowait()
    queue.put(None)
    assert queue.get_nowait() is None
    with pytest.raises(TimeoutError):
        queue.get_nowait()


def test_queue_takes_from_a_signal_handler(runtime: Runtime, queue: Queue) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: queue.put("signal"))
    try:
        task = runtime.spawn("killer", os.kill, os.getpid(), signal.SIGUSR1)
        assert queue.get() == "signal"
        assert task.join(LONG)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("timeout", [-1, 0, 0.01])
def test_empty_queue_times_out(runtime: Runtime, timeout: float) -> None:
    with pytest.raises(TimeoutError):
        runtime.timed_queue().get(timeout)


def test_queue_gives_within_the_timeout(runtime: Runtime) -> None:
    queue = runtime.timed_queue()
    queue.put(None)
    assert queue.get(0) is None
    getter = Started(runtime, queue.get, LONG)
    queue.put("later")
    assert getter.result() == "later"


def test_a_queue_keeps_its_time_when_a_signal_handler_outlasts_it(runtime: Runtime) -> None:
    """SimpleQueue.get() of CPython up to 3.12 then waits for ever, as the rest is negative."""
    queue = runtime.timed_queue()
    rescue = threading.Timer(LONG, queue.put, ["too late"])
    rescue.start()
    over = time.monotonic() + 0.2

    def outlast(*_: object) -> None:
        while time.monotonic() < over + 0.01:
            pass

    before = signal.signal(signal.SIGALRM, outlast)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(TimeoutError):
            queue.get(0.2)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        rescue.cancel()
        rescue.join()


# tasks


def test_task_runs_with_its_arguments_and_ends(runtime: Runtime) -> None:
    go, got = runtime.latch(), runtime.timed_queue()

    def run(*args: object) -> None:
        go.wait()
        got.put((args, runtime.current()))

    task = runtime.spawn("nsq-work 1", run, 1, "two")
    assert task.name == "nsq-work 1"
    assert task.alive
    assert not task.is_current
    assert task.join(0.01) is False
    assert task.join(-1) is False
    go.release()
    args, identity = got.get(LONG)
    assert args == (1, "two")
    assert identity != runtime.current()
    assert task.join() is True
    assert not task.alive
    assert task.join(0) is True


def test_an_infinite_wait_is_a_wait_without_end(runtime: Runtime) -> None:
    go, gone, queue = runtime.event(), runtime.latch(), runtime.timed_queue()

    def run() -> None:
        go.wait(math.inf)
        gone.release()
        queue.put("put")

    task = runtime.spawn("waiting", run)
    settle(runtime)
    go.set()
    assert gone.wait(math.inf)
    assert queue.get(math.inf) == "put"
    assert task.join(math.inf)


def test_threads_carry_the_name_and_are_daemons() -> None:
    runtime = choose("threads")
    thread = Started(runtime, threading.current_thread).result()
    assert thread.name == "started"
    assert thread.daemon


def test_greenlets_carry_the_name() -> None:
    assert Started(choose("gevent"), gevent.getcurrent).result().name == "started"


def test_task_does_not_join_itself(runtime: Runtime) -> None:
    tasks = runtime.timed_queue()

    def run() -> tuple[bool, bool]:
        task: Task = tasks.get(LONG)
        return task.is_current, task.join()

    started = Started(runtime, run)
    tasks.put(started.task)
    assert started.result() == (True, False)
    assert not started.task.is_current


def test_unexpected_exception_is_logged_once(
    runtime: Runtime, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ValueError("broken on purpose")

    assert runtime.spawn("nsq-timer t/c", fail).join(LONG)
    (record,) = caplog.records
    assert record.name == "gnsqsync.runtime"
    assert record.levelno == logging.ERROR
    assert "nsq-timer t/c" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)
    assert "broken on purpose" not in capfd.readouterr().err


def test_exit_of_a_thread_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    assert choose("threads").spawn("ends", sys.exit, 3).join(LONG)
    assert not caplog.records


def test_tasks_of_one_runtime_stress_its_primitives(runtime: Runtime) -> None:
    """Eight tasks hand numbers round in a ring, under locks and over latches; none is lost."""
    tasks, rounds = 8, 400
    queues = [runtime.timed_queue() for _ in range(tasks)]
    lock, done = runtime.lock(), runtime.event()
    totals = {"handed": 0, "inside": 0, "tried": 0}

    def work(index: int) -> None:
        mine, other = queues[index], queues[(index + 1) % tasks]
        for number in range(rounds):
            latch = runtime.latch()
            other.put((number, latch))
            got, theirs = mine.get(LONG)
            assert got == number
            theirs.release()
            with lock:
                totals["inside"] += 1
                assert totals["inside"] == 1
                totals["handed"] += 1
                totals["inside"] -= 1
            if lock.acquire(False):
                totals["tried"] += 1
                lock.release()
            assert latch.wait(LONG)
        with lock:
            if totals["handed"] == tasks * rounds:
                done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        running = [Started(runtime, work, index) for index in range(tasks)]
        for started in running:
            started.result()
    finally:
        sys.setswitchinterval(interval)
    assert done.wait(LONG)
    assert totals["handed"] == tasks * rounds
    assert totals["inside"] == 0
    assert totals["tried"] > 0
    assert not lock.locked()
    assert all(queue.empty() for queue in queues)


# calls that block on sockets of their own


def test_call_blocking_gives_result_or_exception(runtime: Runtime) -> None:
    assert runtime.call_blocking(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        runtime.call_blocking(divmod, 1, 0)


def test_other_tasks_run_during_a_blocking_call(runtime: Runtime) -> None:
    native = threading.Event()
    task = runtime.spawn("setter", native.set)
    assert runtime.call_blocking(native.wait, LONG) is True
    assert task.join(LONG)


# sockets


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture(params=["ipv4", "ipv6", "unix"])
def listener(
    request: pytest.FixtureRequest, runtime: Runtime, tmp_path: Path
) -> Iterator[Listener]:
    if request.param == "ipv6" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    addresses = {
        "ipv4": HOME,
        "ipv6": Address("::1", 0),
        "unix": Address("", 0, str(tmp_path / "nsqd.sock")),
    }
    listener = listen(runtime, addresses[request.param])
    yield listener
    listener.close()


def test_bytes_go_both_ways(runtime: Runtime, listener: Listener) -> None:
    accepting = Started(runtime, listener.accept, LONG)
    client = runtime.connect(listener.address, LONG)
    server = accepting.result()
    assert client.peer == str(listener.address)
    assert server.local == str(listener.address)
    if not listener.address.path:
        assert listener.address.port > 0
        assert server.peer == client.local
    assert client.fileno() != server.fileno()
    assert client.send(b"ping") == 4
    assert server.recv(100) == b"ping"
    assert server.send(memoryview(b"pong")) == 4
    assert client.recv(2) == b"po"
    assert client.recv(100) == b"ng"
    client.close()
    assert server.recv(100) == b""
    server.close()
    assert client.fileno() == -1


def test_tcp_options(pair: tuple[Socket, Socket]) -> None:
    for end in pair:
        with socket.socket(fileno=os.dup(end.fileno())) as sock:
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    with socket.socket(fileno=os.dup(pair[0].fileno())) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.mark.parametrize("seconds", [-1, 0, 1e-9, 0.02, 1])
def test_silence_times_out(pair: tuple[Socket, Socket], seconds: float) -> None:
    client, _ = pair
    client.set_read_timeout(seconds)
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"nothing from 127\.0\.0\.1"):
        client.recv(10)
    assert time.monotonic() - start >= seconds * 0.9


def test_read_timeout_can_be_changed_and_taken_back(
    runtime: Runtime, pair: tuple[Socket, Socket]
) -> None:
    client, server = pair
    client.set_read_timeout(0.01)
    with pytest.raises(TimeoutError):
        client.recv(10)
    client.set_read_timeout(None)
    reader = Started(runtime, client.recv, 10)
    settle(runtime, 0.1)
    assert reader.task.alive
    server.send(b"at last")
    assert reader.result() == b"at last"


def test_data_within_the_read_timeout(runtime: Runtime, pair: tuple[Socket, Socket]) -> None:
    client, server = pair
    client.set_read_timeout(LONG)
    reader = Started(runtime, client.recv, 10)
    settle(runtime)
    server.send(b"now")
    assert reader.result() == b"now"


def test_each_receive_has_the_whole_read_timeout(
    runtime: Runtime, pair: tuple[Socket, Socket]
) -> None:
    client, server = pair
    client.set_read_timeout(0.4)
    reader = Started(runtime, client.recv, 10)
    settle(runtime, 0.2)
    server.send(b"in time")
    assert reader.result() == b"in time"
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        client.recv(10)
    assert time.monotonic() - start >= 0.36
    # A time that passes while nobody receives is nobody's.
    settle(runtime, 0.5)
    server.send(b"late")
    assert client.recv(10) == b"late"


@pytest.mark.parametrize("seconds", [math.inf, 1e11])
def test_no_time_is_too_long_for_a_socket(
    runtime: Runtime, listener: Listener, seconds: float
) -> None:
    client = runtime.connect(listener.address, seconds)
    server = listener.accept(seconds)
    client.set_read_timeout(seconds)
    assert client.wait_writable(seconds)
    reader = Started(runtime, client.recv, 10)
    settle(runtime)
    server.send(b"at last")
    assert reader.result() == b"at last"
    for end in (client, server):
        end.close()


def test_shutdown_wakes_recv_of_another_task(runtime: Runtime, pair: tuple[Socket, Socket]) -> None:
    client, server = pair
    client.set_read_timeout(LONG)
    reader = Started(runtime, client.recv, 10)
    settle(runtime)
    client.shutdown()
    assert reader.result() == b""
    assert client.recv(10) == b""
    assert server.recv(10) == b""
    with pytest.raises(OSError):
        client.send(b"too late")


def test_shutdown_never_raises(pair: tuple[Socket, Socket]) -> None:
    client, server = pair
    client.shutdown()
    client.shutdown()
    client.close()
    client.shutdown()
    client.close()
    server.close()
    server.shutdown()


def test_closed_socket_raises(pair: tuple[Socket, Socket]) -> None:
    client, _ = pair
    client.close()
    with pytest.raises(OSError):
        client.recv(10)
    with pytest.raises(OSError):
        client.send(b"x")
    with pytest.raises(OSError):
        client.wait_writable(0)


def test_send_never_blocks(runtime: Runtime, pair: tuple[Socket, Socket]) -> None:
    client, server = pair
    client.set_read_timeout(LONG)
    total = fill(client)
    assert total > 0
    assert client.send(b"more") == 0
    assert client.wait_writable(0) is False
    assert client.wait_writable(0.02) is False
    waiter = Started(runtime, client.wait_writable, LONG)
    settle(runtime)
    assert waiter.task.alive
    assert len(receive(server, total)) == total
    assert waiter.result() is True
    assert client.send(b"more") == 4
    assert client.wait_writable(None) is True


def test_shutdown_frees_a_task_that_waits_to_write(
    runtime: Runtime, pair: tuple[Socket, Socket]
) -> None:
    client, _ = pair
    fill(client)
    waiter = Started(runtime, client.wait_writable, None)
    settle(runtime)
    client.shutdown()
    assert waiter.result() is True
    with pytest.raises(OSError):
        client.send(b"x")


def test_broken_connection_raises(pair: tuple[Socket, Socket]) -> None:
    client, server = pair
    client.set_read_timeout(LONG)
    client.send(b"not read")
    server.set_read_timeout(LONG)
    assert server.recv(1) == b"n"
    # Closed with unread bytes, the kernel resets the connection.
    server.close()
    with pytest.raises(ConnectionResetError):
        client.recv(10)
    with pytest.raises(BrokenPipeError):
        client.send(b"x")


def test_signals_do_not_disturb_recv(runtime: Runtime, pair: tuple[Socket, Socket]) -> None:
    client, server = pair
    client.set_read_timeout(LONG)
    calls: list[int] = []

    def interrupt(*_: object) -> None:
        calls.append(1)
        if len(calls) == 20:
            server.send(b"after 20 signals")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        assert client.recv(100) == b"after 20 signals"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_abandon_leaves_the_connection_of_the_parent_alone(pair: tuple[Socket, Socket]) -> None:
    """A duplicate descriptor stands for the parent's."""
    client, server = pair
    server.set_read_timeout(LONG)
    with socket.socket(fileno=os.dup(client.fileno())) as parent:
        client.abandon()
        client.shutdown()
        client.close()
        assert client.fileno() == -1
        assert parent.send(b"alive") == 5
        assert server.recv(10) == b"alive"
    assert server.recv(10) == b""


# dialling


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[str, int]]]:
    """Host names of this test; choose the runtime after asking for it."""
    table: dict[str, list[tuple[str, int]]] = {}

    def getaddrinfo(host: str, port: int, *args: Any, **kwargs: Any) -> list[Any]:
        if host not in table:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (number, port or own))
            for number, own in table[host]
        ]

    monkeypatch.setattr("socket.getaddrinfo", getaddrinfo)
    monkeypatch.setattr("gevent.socket.getaddrinfo", getaddrinfo)
    return table


def test_refused_connection_names_the_address(runtime: Runtime) -> None:
    address = Address("127.0.0.1", REFUSED_PORT)
    with pytest.raises(ConnectionRefusedError) as caught:
        runtime.connect(address, LONG)
    assert str(address) in str(caught.value)
    assert caught.value.errno == errno.ECONNREFUSED


def test_missing_unix_socket_names_the_path(runtime: Runtime, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"unix:///.*missing\.sock"):
        runtime.connect(Address("", 0, str(tmp_path / "missing.sock")), LONG)


@pytest.mark.parametrize("kind", ["threads", "gevent"])
def test_unknown_name_names_the_host(kind: str, names: dict[str, Any]) -> None:
    with pytest.raises(socket.gaierror, match=r"nsqd\.example:4150: Name or service not known"):
        choose(kind).connect(Address("nsqd.example", 4150), LONG)


def test_impossible_name_is_an_oserror(runtime: Runtime) -> None:
    with pytest.raises(socket.gaierror, match="look up"):
        runtime.connect(Address("a" * 70 + ".example", 4150), LONG)


@pytest.mark.parametrize("kind", ["threads", "gevent"])
def test_all_addresses_of_a_name_are_tried(
    kind: str, names: dict[str, list[tuple[str, int]]]
) -> None:
    runtime = choose(kind)
    listener = listen(runtime, Address("127.0.0.3", 0))
    port = listener.address.port
    names["nsqd.example"] = [("127.0.0.2", 0), ("127.0.0.3", 0)]
    client = runtime.connect(Address("nsqd.example", port), LONG)
    assert client.peer == f"127.0.0.3:{port}"
    client.close()
    listener.close()
    with pytest.raises(ConnectionRefusedError) as caught:
        runtime.connect(Address("nsqd.example", port), LONG)
    for part in (f"nsqd.example:{port}", f"127.0.0.2:{port}: ", f"127.0.0.3:{port}: "):
        assert part in str(caught.value)


@pytest.mark.parametrize("kind", ["threads", "gevent"])
def test_a_name_is_looked_up_at_each_dial(
    kind: str, names: dict[str, list[tuple[str, int]]]
) -> None:
    """An nsqd that came back elsewhere under its name is found there."""
    runtime = choose(kind)
    listener = listen(runtime, Address("127.0.0.3", 0))
    port = listener.address.port
    names["nsqd.example"] = [("127.0.0.2", 0)]
    with pytest.raises(ConnectionRefusedError):
        runtime.connect(Address("nsqd.example", port), LONG)
    names["nsqd.example"] = [("127.0.0.3", 0)]
    client = runtime.connect(Address("nsqd.example", port), LONG)
    assert client.peer == f"127.0.0.3:{port}"
    client.close()
    listener.close()


class Deaf:
    """A port that neither accepts nor refuses: its backlog is full."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._sockets = [socket.socket()]
        self._sockets[0].bind((host, port))
        self._sockets[0].listen(0)
        self.address = Address(*self._sockets[0].getsockname())
        for _ in range(10):
            extra = socket.socket()
            self._sockets.append(extra)
            extra.settimeout(0.2)
            try:
                extra.connect(self.address[:2])
            except TimeoutError:
                return
        self.close()
        pytest.skip("this kernel has no limit for a backlog")

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


@pytest.fixture
def deaf() -> Iterator[Deaf]:
    port = Deaf()
    yield port
    port.close()


def test_dialling_ends_with_the_timeout(runtime: Runtime, deaf: Deaf) -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=f"no connection to {deaf.address} within 0.2 seconds"):
        runtime.connect(deaf.address, 0.2)
    assert time.monotonic() - start < LONG


def test_a_dial_is_cut_short(runtime: Runtime, deaf: Deaf) -> None:
    cutter = runtime.cutter()
    dial = Started(runtime, runtime.connect, deaf.address, 10 * LONG, None, cutter)
    settle(runtime)
    assert dial.task.alive
    cutter.cut()
    with pytest.raises(OSError, match=f"the dial of {deaf.address} was cut short") as caught:
        dial.result()
    assert caught.value.errno == errno.ECANCELED
    cutter.cut()


@pytest.fixture
def shutdown_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.setattr(dial, "_SHUTDOWN_WAKES", False)
    monkeypatch.setattr(threads, "_wake_dial", lambda sock: None)


@pytest.mark.usefixtures("shutdown_wakes_nobody")
def test_a_dial_is_cut_short_where_shutdown_does_not_wake_it(deaf: Deaf) -> None:
    runtime = choose("threads")
    test_a_dial_is_cut_short(runtime, deaf)
    with pytest.raises(TimeoutError, match=f"no connection to {deaf.address} within 0.2 seconds"):
        runtime.connect(deaf.address, 0.2, None, runtime.cutter())
    listener = listen(runtime, HOME)
    client = runtime.connect(listener.address, LONG, None, runtime.cutter())
    server = listener.accept(LONG)
    client.send(b"x")
    assert server.recv(1) == b"x"
    for end in (client, server, listener):
        end.close()
    with pytest.raises(ConnectionRefusedError):
        runtime.connect(listener.address, LONG, None, runtime.cutter())


def test_a_cut_before_the_dial_and_one_after_it(runtime: Runtime, deaf: Deaf) -> None:
    cutter = runtime.cutter()
    cutter.cut()
    with pytest.raises(OSError, match="was cut short"):
        runtime.connect(deaf.address, LONG, None, cutter)
    listener = listen(runtime, HOME)
    late = runtime.cutter()
    client = runtime.connect(listener.address, LONG, None, late)
    server = listener.accept(LONG)
    # It is its user's now.
    late.cut()
    server.send(b"x")
    assert client.recv(1) == b"x"
    for end in (client, server, listener):
        end.close()


@pytest.mark.parametrize("kind", ["threads", "gevent"])
def test_a_cut_ends_the_dials_of_all_addresses(
    kind: str, names: dict[str, list[tuple[str, int]]], deaf: Deaf
) -> None:
    runtime = choose(kind)
    names["nsqd.example"] = [("127.0.0.1", 0), ("127.0.0.1", 0)]
    cutter = runtime.cutter()
    where = Address("nsqd.example", deaf.address.port)
    dial = Started(runtime, runtime.connect, where, 10 * LONG, None, cutter)
    settle(runtime, 0.2)
    cutter.cut()
    with pytest.raises(OSError, match=f"the dial of {where} was cut short"):
        dial.result()


@pytest.mark.parametrize("kind", ["threads", "gevent"])
def test_a_deaf_address_leaves_time_for_the_next(
    kind: str, names: dict[str, list[tuple[str, int]]], deaf: Deaf
) -> None:
    runtime = choose(kind)
    listener = listen(runtime, Address("127.0.0.2", deaf.address.port))
    names["nsqd.example"] = [("127.0.0.1", 0), ("127.0.0.2", 0)]
    client = runtime.connect(Address("nsqd.example", deaf.address.port), 2.0)
    assert client.peer == str(listener.address)
    client.close()
    listener.close()


def test_no_time_is_a_timeout(runtime: Runtime) -> None:
    with pytest.raises(TimeoutError):
        runtime.connect(Address("127.0.0.1", REFUSED_PORT), 0)


def test_look_up_under_gevent_ends_with_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gevent.socket.getaddrinfo", lambda *_, **__: gevent.sleep(LONG))
    with pytest.raises(TimeoutError, match=r"nsqd\.example"):
        choose("gevent").connect(Address("nsqd.example", 4150), 0.05)


def test_local_address_is_bound(runtime: Runtime) -> None:
    listener = listen(runtime, HOME)
    client = runtime.connect(listener.address, LONG, Address("127.0.0.2", 0))
    server = listener.accept(LONG)
    assert client.local == server.peer
    assert server.peer.startswith("127.0.0.2:")
    for end in (client, server, listener):
        end.close()


def test_local_address_that_cannot_be_bound(runtime: Runtime) -> None:
    listener = listen(runtime, HOME)
    try:
        with pytest.raises(OSError, match=f"cannot connect to {listener.address}") as caught:
            runtime.connect(listener.address, LONG, listener.address._replace(host="192.0.2.1"))
        assert caught.value.errno == errno.EADDRNOTAVAIL
        assert "192.0.2.1" in str(caught.value)
        with pytest.raises(OSError, match="address family") as caught:
            runtime.connect(listener.address, LONG, Address("::1", 0))
    finally:
        listener.close()


def test_a_dial_that_meets_itself_is_refused(runtime: Runtime) -> None:
    address = Address("127.0.0.1", REFUSED_PORT)
    with pytest.raises(ConnectionRefusedError, match="itself"):
        runtime.connect(address, LONG, address)


# listening


def test_accept_times_out(runtime: Runtime, listener: Listener) -> None:
    with pytest.raises(TimeoutError):
        listener.accept(0.02)
    with pytest.raises(TimeoutError):
        listener.accept(0)
    accepting = Started(runtime, listener.accept)
    client = runtime.connect(listener.address, LONG)
    accepting.result().close()
    client.close()


def test_close_wakes_accept(runtime: Runtime, listener: Listener) -> None:
    accepting = Started(runtime, listener.accept)
    settle(runtime)
    listener.close()
    with pytest.raises(OSError):
        accepting.result()
    with pytest.raises(OSError):
        listener.accept(LONG)
    if listener.address.path:
        assert not os.path.exists(listener.address.path)
    with pytest.raises(OSError):
        runtime.connect(listener.address, LONG)


# what is particular to greenlets


def blocked_calls(runtime: Runtime, end: Socket) -> dict[str, Callable[[], object]]:
    lock = runtime.lock()
    lock.acquire()
    return {
        "lock": lock.acquire,
        "event": runtime.event().wait,
        "latch": runtime.latch().wait,
        "rough latch": runtime.rough_latch().wait,
        "queue": runtime.queue().get,
        "recv": lambda: end.recv(10),
        "blocking call": lambda: runtime.call_blocking(threading.Event().wait, 0.3),
    }


@pytest.mark.parametrize(
    "name", ["lock", "event", "latch", "rough latch", "queue", "recv", "blocking call"]
)
def test_timeout_of_gevent_passes_through_every_wait(name: str) -> None:
    runtime = choose("gevent")
    listener = listen(runtime, HOME)
    client = runtime.connect(listener.address, LONG)
    call = blocked_calls(runtime, client)[name]
    with pytest.raises(gevent.Timeout):
        with gevent.Timeout(0.02):
            call()
    client.close()
    listener.close()


def test_killed_greenlets_leave_nothing_locked(caplog: pytest.LogCaptureFixture) -> None:
    runtime = choose("gevent")
    lock, queue, event = runtime.lock(), runtime.timed_queue(), runtime.event()
    entered = runtime.timed_queue()

    def hold() -> None:
        with lock:
            entered.put(gevent.getcurrent())
            event.wait()

    def wait_for_lock() -> None:
        entered.put(gevent.getcurrent())
        with lock:
            pytest.fail("taken by a greenlet that was killed while it waited")

    def get() -> None:
        entered.put(gevent.getcurrent())
        queue.get()

    tasks = [runtime.spawn(fn.__name__, fn) for fn in (hold, wait_for_lock, get)]
    greenlets = [entered.get(LONG) for _ in tasks]
    settle(runtime)
    for greenlet in reversed(greenlets):
        greenlet.kill()
    assert all(task.join(LONG) for task in tasks)
    assert lock.acquire(timeout=LONG)
    queue.put("kept")
    assert queue.get(LONG) == "kept"
    assert not caplog.records


def test_timeout_that_escapes_a_greenlet_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    runtime = choose("gevent")

    def run() -> None:
        with gevent.Timeout(0.01):
            runtime.event().wait()

    assert runtime.spawn("late", run).join(LONG)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], gevent.Timeout)


@pytest.mark.parametrize(
    "use",
    [
        lambda runtime: runtime.lock(),
        lambda runtime: runtime.event(),
        lambda runtime: runtime.latch(),
        lambda runtime: runtime.queue(),
        lambda runtime: runtime.timed_queue(),
        lambda runtime: runtime.spawn("x", len, ""),
        lambda runtime: runtime.connect(HOME, 1),
        lambda runtime: runtime.call_blocking(len, ""),
    ],
)
def test_gevent_runtime_refuses_other_os_threads(use: Callable[[Runtime], object]) -> None:
    greenlets = choose("gevent")
    with pytest.raises(ConfigError, match="another OS thread"):
        Started(choose("threads"), use, greenlets).result()


def test_gevent_runtime_works_in_a_thread_of_its_own() -> None:
    def run() -> int:
        runtime = choose("gevent")
        answer: int = Started(runtime, lambda: 42).result()
        gevent.get_hub().destroy(destroy_loop=True)
        return answer

    assert Started(choose("threads"), run).result() == 42


# fork hooks (what they do in a child: tests/integration/test_runtime_fork.py)


class Forked:
    def in_child(self) -> None:
        pytest.fail("called in the parent")


def test_fork_hooks_are_held_weakly(runtime: Runtime) -> None:
    owner = Forked()
    alive = weakref.ref(owner)
    runtime.on_fork(owner.in_child)
    del owner
    gc.collect()
    assert alive() is None


def test_fork_hooks_are_bound_methods(runtime: Runtime) -> None:
    with pytest.raises(TypeError, match="bound method"):
        runtime.on_fork(lambda: None)
