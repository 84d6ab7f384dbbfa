"""What a fork leaves of a runtime: hooks, connections, tasks and the recorded world."""

from __future__ import annotations

import pytest

from tests.support.interpreter import run_script

# Child(fn) runs fn in the child of a fork, and its check() fails when fn failed; what both print is
# kept. It goes by a pipe, as gevent's os.waitpid() can miss a child that ends at once.
PREPARE = """
    import os, sys, traceback
    from gnsqsync.addresses import Address
    from tests.support.listening import listen
    from gnsqsync.runtime import choose

    class Child:
        def __init__(self, fn):
            sys.stdout.flush()
            self.pipe, end = os.pipe()
            if os.fork():
                os.close(end)
                return
            word = b"bad"
            try:
                fn()
                word = b"good"
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os.write(end, word)
                os._exit(0)

        def check(self):
            assert os.read(self.pipe, 10) == b"good", "the child failed"
            os.close(self.pipe)

    def in_child(fn):
        Child(fn).check()

    def connect(runtime):
        listener = listen(runtime, Address("127.0.0.1", 0))
        client = runtime.connect(listener.address, 10)
        server = listener.accept(10)
        listener.close()
        for end in (client, server):
            end.set_read_timeout(10)
        return client, server
"""

WORLDS = {
    "threads": 'runtime = choose("threads")',
    "gevent": 'runtime = choose("gevent")',
    "patched": """
import gevent.monkey
gevent.monkey.patch_all()
runtime = choose()
assert os.fork.__module__ == "gevent.os"
""",
}


@pytest.fixture(params=list(WORLDS))
def prepared(request: pytest.FixtureRequest) -> str:
    return WORLDS[request.param]


def test_hooks_run_in_the_child_only(prepared: str) -> None:
    out = run_script(
        PREPARE,
        prepared,
        """
        import logging
        logging.basicConfig(stream=sys.stdout, format="%(name)s %(levelname)s")

        class Owner:
            def __init__(self, name):
                self.name = name
            def note(self):
                print(self.name, os.getpid() != parent)
            def fail(self):
                raise ValueError(self.name)

        parent = os.getpid()
        first, failing, gone, last = (Owner(n) for n in ("first", "failing", "gone", "last"))
        runtime.on_fork(first.note)
        runtime.on_fork(failing.fail)
        runtime.on_fork(gone.note)
        runtime.on_fork(last.note)
        del gone
        in_child(lambda: print("child"))
        print("parent")
        in_child(lambda: in_child(lambda: print("grandchild")))
        """,
    )
    lines = [line for line in out.splitlines() if line and line[0].islower()]
    once = ["first True", "gnsqsync.runtime ERROR", "last True"]
    own = [line for line in lines if line in (*once, "child", "parent", "grandchild")]
    assert own == [*once, "child", "parent", *once, *once, "grandchild"]
    assert "gone" not in out
    assert out.count("ValueError: failing") == 3


def test_a_child_lets_go_without_ending_the_parents_connection(prepared: str) -> None:
    run_script(
        PREPARE,
        prepared,
        """
        client, server = connect(runtime)
        class Owner:
            def lose(self):
                client.abandon()
                client.shutdown()
                client.close()
                server.abandon()
        owner = Owner()
        runtime.on_fork(owner.lose)
        in_child(lambda: None)
        client.send(b"still here")
        assert server.recv(100) == b"still here"
        """,
    )


def test_a_child_whose_hub_never_runs_holds_nothing_open(prepared: str) -> None:
    """gevent closes late what a greenlet waits for; nsqd would not see the parent's close."""
    run_script(
        PREPARE,
        prepared,
        """
        client, server = connect(runtime)
        client.set_read_timeout(None)
        task = runtime.spawn("read", client.recv, 100)
        runtime.event().wait(0.05)
        class Owner:
            def lose(self):
                client.abandon()
                server.abandon()
        owner = Owner()
        runtime.on_fork(owner.lose)
        holding = os.pipe()
        child = Child(lambda: os.read(holding[0], 1))
        server.send(b"x")
        assert task.join(10)
        client.close()
        assert server.recv(100) == b"", "the child holds the connection open"
        os.write(holding[1], b"x")
        child.check()
        server.close()
        """,
    )


def test_tasks_end_in_the_child_and_live_on_in_the_parent(prepared: str) -> None:
    """Threads by themselves; greenlets are copied, and must not go on in two processes."""
    run_script(
        PREPARE,
        prepared,
        """
        go, got = runtime.event(), runtime.timed_queue()
        ready = runtime.timed_queue()
        def work(number):
            ready.put(number)
            go.wait()
            got.put(number)
        tasks = [runtime.spawn(f"task {n}", work, n) for n in range(3)]
        for _ in tasks:
            ready.get(10)
        def check():
            assert all(task.join(10) for task in tasks), tasks
            assert got.empty()
        in_child(check)
        assert all(task.alive for task in tasks)
        go.set()
        assert sorted(got.get(10) for _ in tasks) == [0, 1, 2]
        assert all(task.join(10) for task in tasks)
        """,
    )


def test_a_copied_reader_takes_nothing_from_the_parent(prepared: str) -> None:
    run_script(
        PREPARE,
        prepared,
        """
        client, server = connect(runtime)
        got = runtime.timed_queue()
        def read():
            while data := client.recv(100):
                got.put(data)
        task = runtime.spawn("read", read)
        runtime.event().wait(0.05)
        class Owner:
            def lose(self):
                client.abandon()
                server.abandon()
        owner = Owner()
        runtime.on_fork(owner.lose)
        sent = os.pipe()
        def check():
            os.read(sent[0], 1)
            assert choose(runtime.name).event().wait(0.1) is False
            assert got.empty()
        child = Child(check)
        server.send(b"for the parent")
        os.write(sent[1], b"x")
        assert got.get(10) == b"for the parent"
        child.check()
        server.shutdown()
        assert task.join(10)
        client.close()
        server.close()
        """,
    )


def test_the_child_starts_afresh(prepared: str) -> None:
    run_script(
        PREPARE,
        prepared,
        """
        def round_trip():
            own = choose(runtime.name)
            # First of all, as the native threads of gevent's pool stayed with the parent.
            assert own.call_blocking(divmod, 7, 2) == (3, 1)
            client, server = connect(own)
            echo = own.spawn("echo", lambda: server.send(server.recv(100)))
            client.send(b"x")
            assert client.recv(100) == b"x"
            assert echo.join(10)
            listener = listen(own, Address("localhost", 0))
            listener.close()
            client.close()
            server.close()
        round_trip()
        in_child(round_trip)
        in_child(lambda: in_child(round_trip))
        round_trip()
        """,
    )


def test_a_task_that_forks_goes_on_in_the_child(prepared: str) -> None:
    out = run_script(
        PREPARE,
        prepared,
        """
        def work():
            in_child(lambda: (runtime.event().wait(0.01), print("went on")))
        assert runtime.spawn("forks", work).join(30)
        """,
    )
    assert out == "went on"


def test_a_child_may_patch_what_the_parent_used_unpatched() -> None:
    """gunicorn --preload: the master publishes natively, its gevent workers patch."""
    out = run_script(
        PREPARE,
        """
        choose().spawn("before", len, "").join()
        def worker():
            import gevent.monkey
            gevent.monkey.patch_all()
            print(choose().name)
        in_child(worker)
        print(choose().name)
        """,
    )
    assert out.split() == ["gevent", "threads"]
