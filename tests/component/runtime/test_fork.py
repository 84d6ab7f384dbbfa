"""Readers and Writers in the child of a fork: connections of their own, no byte on the parent's.

Each test is a script in an interpreter of its own, and looks at the nsqd from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from gnsqsync import NsqdHTTP
from gnsqsync.embedded import Nsqd, Nsqlookupd
from tests.component.conftest import address
from tests.support.interpreter import run_script
from tests.support.scripted import ScriptedNsqd, automatic, message

WORLDS = {
    "threads": 'RUNTIME = "threads"',
    "gevent": 'RUNTIME = "gevent"',
    "patched": "import gevent.monkey\ngevent.monkey.patch_all()\nRUNTIME = None",
}

# in_child(fn) runs fn in a child and waits for it; the child ends as any interpreter does, with
# all hooks. It tells by a pipe, as gevent's os.waitpid() can miss a child that ends at once.
PREPARE = """
import os, posix, sys, time
from gnsqsync import Reader, Writer
from gnsqsync.errors import ClosedError, ConfigError

def in_child(fn):
    sys.stdout.flush()
    pipe, end = os.pipe()
    pid = os.fork()
    if not pid:
        fn()
        sys.stdout.flush()
        os.write(end, b"good")
        sys.exit(0)
    os.close(end)
    assert os.read(pipe, 10) == b"good", "the child failed"
    os.close(pipe)
    eventually(lambda: has_ended(pid))

def has_ended(pid):
    try:
        return posix.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True  # gevent has waited for it

def eventually(look):
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline
        pause(0.01)

def pause(seconds):
    if RUNTIME == "gevent":
        import gevent
        gevent.sleep(seconds)
    else:
        time.sleep(seconds)
"""


Run = Callable[[ScriptedNsqd, str], str]


def in_every_world(run: Callable[..., str]) -> Callable[[Callable[[Run], None]], Any]:
    """Makes a test of a function that takes ``run`` without its first argument, the world.

    The worlds run beside each other: these tests wait more than they compute.
    """

    def decorate(function: Callable[[Run], None]) -> Callable[[], None]:
        def test() -> None:
            with ThreadPoolExecutor(len(WORLDS)) as pool:
                ends = {name: pool.submit(function, partial(run, name)) for name in WORLDS}
            for name, end in ends.items():
                error = end.exception()
                assert error is None, f"{name}: {error}"

        test.__doc__ = function.__doc__
        return test

    return decorate


def run(world: str, nsqd: ScriptedNsqd, script: str) -> str:
    """Run a script; ADDRESS in it is where the nsqd is."""
    return run_script(WORLDS[world], f"ADDRESS = {address(nsqd)!r}", PREPARE, script)


def bodies(nsqd: ScriptedNsqd, number: int) -> list[bytes | None]:
    return [c.body for c in nsqd.connections[number].commands if c.name == "PUB"]


@in_every_world(run)
def test_a_writer_in_the_child_of_a_fork(run: Run) -> None:
    with ScriptedNsqd() as nsqd:
        run(
            nsqd,
            """
            writer = Writer(ADDRESS, runtime=RUNTIME)
            writer.publish("t", "parent before")

            def child():
                assert not writer.is_connected
                writer.publish("t", "child")
                assert writer.stats().published == 1
                in_child(grandchild)
                writer.publish("t", "child again")
                writer.close()

            def grandchild():
                # Without a close: the end of the interpreter does that.
                writer.publish("t", "grandchild")

            in_child(child)
            writer.publish("t", "parent after")
            assert writer.stats().published == 2
            assert len(writer.stats().connections) == 1
            writer.close()
            """,
        )
        assert [bodies(nsqd, n) for n in range(len(nsqd.connections))] == [
            [b"parent before", b"parent after"],
            [b"child", b"child again"],
            [b"grandchild"],
        ]


@in_every_world(run)
def test_a_child_that_does_not_publish_touches_nothing(run: Run) -> None:
    with ScriptedNsqd() as nsqd:
        run(
            nsqd,
            """
            writer = Writer(ADDRESS, runtime=RUNTIME)
            writer.publish("t", "before")
            in_child(lambda: None)
            in_child(writer.close)
            writer.publish("t", "after")
            writer.close()
            """,
        )
        assert len(nsqd.connections) == 1
        assert bodies(nsqd, 0) == [b"before", b"after"]
        assert [c.name for c in nsqd.commands] == ["IDENTIFY", "PUB", "PUB"]


@in_every_world(run)
def test_a_reader_in_the_child_of_a_fork(run: Run) -> None:
    """It says that it is the parent's; what the parent has goes on."""
    late = message(b"late", id=b"0123456789abcdef")
    script = [automatic(until="FIN"), message(b"after the fork"), automatic()]
    first = [automatic(until="RDY"), late]
    with ScriptedNsqd([*first, *script]) as nsqd:
        out = run(
            nsqd,
            """
            got = []
            reader = Reader("t", "ch", lambda m: got.append(m.body), nsqd_tcp_addresses=ADDRESS,
                            runtime=RUNTIME, latency="throughput")
            reader.start(block=False)
            eventually(lambda: got)

            def child():
                for use in (reader.stats, reader.pause, reader.join, reader.start):
                    try:
                        use()
                    except ClosedError as error:
                        print(error)
                reader.stop()
                # One of its own.
                other = Reader("t", "ch", print, nsqd_tcp_addresses=ADDRESS, runtime=RUNTIME)
                other.start(block=False)
                eventually(lambda: other.stats().connections)
                other.stop()
                assert other.join().clean

            in_child(child)
            eventually(lambda: len(got) == 2)
            assert len(reader.stats().connections) == 1
            reader.stop()
            assert reader.join().clean
            """,
        )
        assert out.count("this Reader was started before the fork; make one in the child") == 3
        names = [c.name for c in nsqd.connections[0].commands]
        assert names == ["IDENTIFY", "SUB", "RDY", "FIN", "FIN", "RDY", "CLS"]
        assert len(nsqd.connections) == 2


@in_every_world(run)
def test_a_fork_in_the_middle_of_publishing(run: Run) -> None:
    """Whatever lock another thread holds at that moment, the child has its own."""
    with ScriptedNsqd() as nsqd:
        run(
            nsqd,
            """
            writer = Writer(ADDRESS, runtime=RUNTIME)
            writer.publish("t", "first")
            from gnsqsync.runtime import choose
            runtime, done = choose(RUNTIME), []

            def publish():
                while not done:
                    writer.publish("t", "parent")
                    pause(0)

            tasks = [runtime.spawn("publish", publish) for _ in range(4)]

            for _ in range(5):
                in_child(lambda: writer.publish("t", "child"))
                pause(0.01)
            done.append(True)
            assert all(task.join(15) for task in tasks)
            writer.close()
            """,
        )
        assert len(nsqd.connections) == 6
        assert set(bodies(nsqd, 0)) == {b"first", b"parent"}
        assert [bodies(nsqd, n) for n in range(1, 6)] == [[b"child"]] * 5


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(method: str) -> None:
    """A spawned child gets the Writer pickled, which is its configuration."""
    with ScriptedNsqd() as nsqd:
        run_script(
            WORLDS["threads"],
            f"ADDRESS, METHOD = {address(nsqd)!r}, {method!r}",
            PREPARE,
            """
            import multiprocessing
            context = multiprocessing.get_context(METHOD)
            writer = Writer(ADDRESS, runtime=RUNTIME)
            writer.publish("t", "before")
            children = [context.Process(target=writer.publish, args=("t", "child"))
                        for _ in range(2)]
            for child in children:
                child.start()
            for child in children:
                child.join(30)
                assert child.exitcode == 0, child.exitcode
            writer.publish("t", "after")
            reader = Reader("t", "ch", print, nsqd_tcp_addresses=ADDRESS)
            import pickle
            try:
                pickle.dumps(reader)
            except TypeError as error:
                print(error)
            writer.close()
            """,
        )
        assert bodies(nsqd, 0) == [b"before", b"after"]
        assert sorted(bodies(nsqd, n) for n in (1, 2)) == [[b"child"]] * 2


LIVING = """
def living(kind, count):
    # Copies end in their own time. Then a look at a time when others had theirs to begin.
    eventually(lambda: len(names(kind)) == count)
    pause(0.3)
    return names(kind)

def names(kind):
    if RUNTIME == "threads":
        import threading
        names = [thread.name for thread in threading.enumerate()]
    else:
        import gc, gevent
        greenlets = [found for found in gc.get_objects() if isinstance(found, gevent.Greenlet)]
        names = [greenlet.name for greenlet in greenlets if not greenlet.ready()]
    return sorted(name.split()[0] for name in names if name.startswith(kind))
"""


@pytest.mark.parametrize("name", WORLDS)
def test_questions_to_nsqlookupds_do_not_go_on_in_the_child(name: str) -> None:
    """gevent copies greenlets, which end there: nobody takes their place, and consumes."""
    with Nsqlookupd() as lookupd, Nsqd(lookupd_tcp_addresses=[lookupd.tcp_address]) as nsqd:
        with NsqdHTTP(nsqd.http_address) as client:
            client.create_topic("t")
        out = run_script(
            WORLDS[name],
            f"LOOKUPD = {lookupd.http_address!r}",
            PREPARE,
            LIVING,
            """
            class Handler:
                def __call__(self, message):
                    pass

                def worker_ended(self):
                    print("told of its end in", "the child" if in_the_child else "the parent")

            finding = {"lookupd_http_addresses": LOOKUPD, "lookupd_poll_interval": 0.05}
            in_the_child = False
            reader = Reader("t", "ch", Handler(), runtime=RUNTIME, **finding)
            reader.start(block=False)
            writer = Writer(runtime=RUNTIME, **finding)
            writer.connect()
            eventually(lambda: reader.stats().connections)

            def child():
                global in_the_child
                in_the_child = True
                print("child", living("nsq-", 0))
                writer.publish("t", b"x")
                print("child", living("nsq-lookup", 1))
                writer.close()

            in_child(child)
            reader.stop()
            assert reader.join().clean
            writer.close()
            """,
        )
    lines = out.splitlines()
    assert lines == ["child []", "child ['nsq-lookup']", "told of its end in the parent"]
