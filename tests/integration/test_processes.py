"""Reader and Writer across forks, in every state: the child starts afresh, the parent goes on."""

from __future__ import annotations

import pytest

from tests.support.interpreter import run_script
from tests.support.scripts import WORLDS, prelude
from tests.support.servers import Server, Site


@pytest.fixture(params=WORLDS)
def begin(request: pytest.FixtureRequest, nsqd: Server, topic: str) -> str:
    """How a script of each world begins."""
    return prelude(request.param, nsqd, topic)


# -- the Writer ------------------------------------------------------------------------------------

# With a Writer that may be connected: what a child does, and what the parent then sees.
CHILD_AND_PARENT = """
    def child():
        writer.publish(topic, b"child")
        writer.publish_many(topic, [b"child"] * 3)
        future = writer.publish_async(topic, b"child")
        world.eventually(future.done)
        assert future.exception() is None
        assert writer.stats().published == 5, writer.stats()
        now = nsqd.publishers(me)
        assert before.items() <= now.items(), (before, now)
        assert len(now) == len(before) + 1, (before, now)
        if leave == "close":
            writer.close()
        elif leave == "grandchild":
            in_child(lambda: writer.publish(topic, b"grandchild"))

    def check(fork):
        Child(child, fork).check()
        # The child's connection ended with it; the parent's was never touched.
        world.eventually(lambda: nsqd.publishers(me) == before)
        writer.publish(topic, b"parent")
        now = nsqd.publishers(me)
        assert before.items() <= now.items(), (before, now)
        assert len(now) == 1, now
"""


@pytest.mark.pairs
@pytest.mark.parametrize("state", ["unused", "connected"])
def test_a_writer_starts_afresh_in_the_child(begin: str, state: str) -> None:
    run_script(
        begin,
        f"connected = {state == 'connected'}",
        """
        writer = Writer(address, client_id=me, runtime=runtime)
        if connected:
            writer.publish(topic, b"parent")
        before = nsqd.publishers(me)
        assert len(before) == connected
        """,
        CHILD_AND_PARENT,
        """
        for leave in ("exit", "close", "grandchild"):
            check(os.fork)
            before = nsqd.publishers(me)
        assert nsqd.count(topic) == connected + 3 * 6 + 1
        writer.close()
        """,
    )


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.pairs
def test_a_fork_that_python_is_not_told_of(site: Site, topic: str, secure: bool) -> None:
    """As by uWSGI, which runs no hooks of os.fork: the process id tells."""
    nsqd = site.nsqd(*site.certificates.flags) if secure else site.nsqd()
    options = {"tls": True, "tls_ca_file": str(site.certificates.ca_file)} if secure else {}
    run_script(
        prelude("threads", nsqd, topic),
        f"leave, options = 'exit', {options!r}",
        """
        from tests.support.forking import fork_without_hooks
        writer = Writer(address, client_id=me, **options)
        writer.publish(topic, b"parent")
        before = nsqd.publishers(me)
        """,
        CHILD_AND_PARENT,
        """
        check(fork_without_hooks)
        check(fork_without_hooks)
        writer.close()
        """,
    )


def test_a_tls_connection_hears_nothing_of_the_fork(site: Site, topic: str) -> None:
    """A close_notify from the child would end the parent's session."""
    nsqd = site.nsqd(*site.certificates.flags)
    for name in WORLDS:
        run_script(
            prelude(name, nsqd, f"{topic}-{name}"),
            f"leave, ca_file = 'close', {str(site.certificates.ca_file)!r}",
            """
            writer = Writer(address, client_id=me, runtime=runtime, tls=True, tls_ca_file=ca_file)
            writer.publish(topic, b"parent")
            before = nsqd.publishers(me)
            """,
            CHILD_AND_PARENT,
            """
            check(os.fork)
            # One that does nothing but end, by way of Python's own clean-up.
            pid = os.fork()
            if not pid:
                sys.exit(0)
            os.waitpid(pid, 0)
            check(os.fork)
            assert nsqd.publishers(me) == before
            writer.close()
            """,
        )


@pytest.mark.pairs
def test_a_closed_writer_is_closed_in_the_child(begin: str) -> None:
    out = run_script(
        begin,
        """
        writer = Writer(address, client_id=me, runtime=runtime)
        writer.publish(topic, b"x")
        writer.close()
        def child():
            try:
                writer.publish(topic, b"y")
            except ClosedError as error:
                print(error)
            writer.close()
        in_child(child)
        """,
    )
    assert out == "the Writer is closed; make a new one to publish again"


@pytest.mark.timeout(180)
@pytest.mark.pairs
def test_forks_in_the_middle_of_publishes(begin: str) -> None:
    """50 forks beside 8 that publish: whatever lock is held, no child hangs, nothing is lost."""
    run_script(
        begin,
        """
        writer = Writer(address, client_id=me, runtime=runtime)
        writer.publish(topic, b"first")
        before = nsqd.publishers(me)
        parent, done, counts = os.getpid(), [], []

        def publish_on():
            count = 0
            try:
                # A greenlet is copied by a fork; only the parent's goes on.
                while os.getpid() == parent and not done:
                    writer.publish(topic, b"parent" * 100)
                    count += 1
            except (ClosedError, OutcomeUnknown):
                if os.getpid() == parent:
                    raise
            counts.append(count)

        def child():
            # Until the copies of greenlets have ended.
            writer.publish(topic, b"child", timeout=20)
            if world.name != "threads":
                world.eventually(lambda: len(counts) == 8)

        # Not patched threads: threading itself stumbles over their copies.
        spawn = (world if world.name == "threads" else World("gevent")).spawn
        tasks = [spawn(publish_on) for _ in range(8)]
        for _ in range(50):
            in_child(child)
            world.sleep(0.002)
        done.append(True)
        for task in tasks:
            task.join()
        assert all(counts), counts
        assert nsqd.publishers(me) == before, "the parent has connected anew"
        assert writer.stats().published == 1 + sum(counts)
        assert nsqd.count(topic) == 1 + sum(counts) + 50
        writer.close()
        """,
        timeout=150,
    )


@pytest.mark.pairs
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_multiprocessing(begin: str, method: str) -> None:
    """A Writer goes to the child as configuration, or by the fork; its connections never do."""
    out = run_script(
        begin,
        f"method = {method!r}",
        """
        import multiprocessing
        from tests.support import forking
        writer = Writer(address, client_id=me, runtime=runtime)
        writer.publish(topic, b"parent")
        before = nsqd.publishers(me)
        context = multiprocessing.get_context(method)
        targets = [(forking.publish, (writer, topic))]
        if method == "fork":
            forking.inherited.append(writer)
            targets.append((forking.publish_inherited, (topic,)))
        for target, arguments in targets:
            process = context.Process(target=target, args=arguments)
            process.start()
            # Not join(): in a patched process it sits out its whole timeout after a spawn.
            world.eventually(lambda: process.exitcode is not None)
            assert process.exitcode == 0, process
        world.eventually(lambda: nsqd.publishers(me) == before)
        writer.publish(topic, b"parent")
        assert nsqd.publishers(me) == before
        assert nsqd.count(topic) == 2 + len(targets)
        writer.close()
        """,
    )
    assert out.split() == ["published"] * (2 if method == "fork" else 1)


# -- the Reader ------------------------------------------------------------------------------------

# What raises in the child, for a Reader that was started before the fork.
DEAD = """
    def dead():
        for use in (reader.join, reader.stats, reader.pause, reader.resume,
                    lambda: reader.set_max_in_flight(2), lambda: reader.is_starved,
                    reader.start, reader.__enter__):
            try:
                use()
            except ClosedError as error:
                assert "make" in str(error), error
                texts.add(str(error))
            else:
                # Entering a Reader that runs does nothing; leaving it would.
                assert use == reader.__enter__, use
        # Signal handlers are inherited too, and must not raise.
        reader.stop()
        print(*sorted(texts), sep="\\n")
    texts = set()
"""


@pytest.mark.pairs
def test_a_running_reader_is_dead_in_the_child_and_goes_on_in_the_parent(begin: str) -> None:
    out = run_script(
        begin,
        DEAD,
        """
        got, kept = [], []
        def handler(message):
            got.append((message.body, os.getpid()))
            if message.body == b"keep":
                message.detach()
                kept.append(message)
        reader = Reader(topic, "ch", handler, nsqd_tcp_addresses=address, runtime=runtime,
                        max_in_flight=4, concurrency=2)
        reader.start(block=False)
        writer = Writer(address, runtime=runtime)
        writer.publish(topic, b"keep")
        world.eventually(lambda: kept)
        before = nsqd.consumers(topic)
        assert len(before) == 1
        def child():
            dead()
            # A message belongs to the parent as its connection does.
            assert kept[0].finish() is False and not kept[0].is_alive
            assert kept[0].requeue() is False and kept[0].touch() is False
        in_child(child)
        # One that ends by Python's own clean-up.
        pid = os.fork()
        if not pid:
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert kept[0].is_alive and kept[0].touch() and kept[0].finish()
        writer.publish(topic, b"after")
        world.eventually(lambda: (b"after", os.getpid()) in got)
        assert nsqd.consumers(topic) == before
        reader.stop()
        assert reader.join(20).clean
        writer.close()
        """,
    )
    assert "this Reader was started before the fork; make one in the child" in out


@pytest.mark.pairs
def test_a_reader_in_backoff(begin: str) -> None:
    run_script(
        begin,
        DEAD,
        """
        got = []
        def handler(message):
            got.append(message.attempts)
            if message.attempts == 1:
                raise Requeue(0)
        reader = Reader(topic, "ch", handler, nsqd_tcp_addresses=address, runtime=runtime,
                        backoff_multiplier=0.5, backoff="every_failure")
        reader.start(block=False)
        writer = Writer(address, runtime=runtime)
        writer.publish(topic, b"x")
        world.eventually(lambda: reader.is_in_backoff)
        in_child(dead)
        world.eventually(lambda: got == [1, 2] and not reader.is_in_backoff)
        reader.stop()
        assert reader.join(20).clean
        writer.close()
        """,
    )


@pytest.mark.pairs
@pytest.mark.parametrize("state", ["unused", "stopped"])
def test_a_reader_that_does_not_run(begin: str, state: str) -> None:
    """One that never ran may be started in the child, one that has run may not."""
    out = run_script(
        begin,
        DEAD,
        f"state = {state!r}",
        """
        got = []
        reader = Reader(topic, "ch", got.append, nsqd_tcp_addresses=address, runtime=runtime)
        writer = Writer(address, runtime=runtime)
        writer.publish(topic, b"x")
        if state == "stopped":
            reader.start(block=False)
            reader.stop()
            reader.join()
        def child():
            if state == "stopped":
                dead()
                return
            reader.start(block=False)
            world.eventually(lambda: got)
            reader.stop()
            assert reader.join(20).clean
            print("consumed")
        in_child(child)
        writer.close()
        """,
    )
    if state == "unused":
        assert out == "consumed"
    else:
        assert "make one in the child" in out


@pytest.mark.pairs
def test_the_pull_form_ends_in_the_child(begin: str) -> None:
    """A generator that the parent began would wait for messages that never come."""
    out = run_script(
        begin,
        """
        reader = Reader(topic, "ch", nsqd_tcp_addresses=address, runtime=runtime)
        writer = Writer(address, runtime=runtime)
        writer.publish_many(topic, [b"1", b"2"])
        messages = iter(reader)
        next(messages).finish()
        def child():
            try:
                next(messages)
            except ClosedError as error:
                print(error)
        in_child(child)
        next(messages).finish()
        reader.stop()
        assert list(messages) == []
        assert reader.join(20).clean
        writer.close()
        """,
    )
    assert "make one in the child" in out


def test_a_reader_is_not_passed_to_a_process() -> None:
    out = run_script(
        """
        import multiprocessing
        from gnsqsync import Reader
        reader = Reader("t", "ch", print, nsqd_tcp_addresses="127.0.0.1")
        for method in ("spawn", "forkserver"):
            process = multiprocessing.get_context(method).Process(target=print, args=(reader,))
            try:
                process.start()
            except TypeError as error:
                print(error)
        """,
    )
    assert out.splitlines() == ["a Reader cannot be pickled; make one where it runs"] * 2
