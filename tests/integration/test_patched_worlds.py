"""The runtime in processes that gevent patched wholly, partly, early, late or not at all.

Each test is a script in an interpreter of its own, as patching cannot be undone.
"""

from __future__ import annotations

import pytest

from tests.support.interpreter import run_script

# A round trip through everything a runtime offers; prints the runtime's name.
USE = """
    from gnsqsync.addresses import Address
    from tests.support.listening import listen

    def use(runtime):
        listener = listen(runtime, Address("127.0.0.1", 0))
        queue, lock = runtime.queue(), runtime.lock()
        latch, event = runtime.latch(), runtime.event()

        def serve():
            server = listener.accept(10)
            server.set_read_timeout(10)
            with lock:
                data = server.recv(100)
            while not server.send(data.upper()):
                server.wait_writable(10)
            server.close()
            latch.release()
            queue.put("served")
            event.set()

        task = runtime.spawn("serve", serve)
        client = runtime.connect(listener.address, 10)
        client.set_read_timeout(10)
        client.send(b"hello")
        assert client.recv(100) == b"HELLO", "no answer"
        assert latch.wait(10) and queue.get(10) == "served" and event.wait(10)
        assert client.recv(100) == b""
        assert task.join(10) and not task.alive
        assert runtime.call_blocking(divmod, 7, 2) == (3, 1)
        # A name, as its look-up goes another way.
        runtime.connect(Address("localhost", listener.address.port), 10).close()
        listener.accept(10).close()
        client.close()
        listener.close()
        print(runtime.name)
"""


def run(script: str) -> str:
    return run_script(USE, script)


def test_without_gevent() -> None:
    out = run("""
        import sys
        from gnsqsync.runtime import choose
        use(choose())
        assert not any(name.split(".")[0] == "gevent" for name in sys.modules)
    """)
    assert out == "threads"


def test_gevent_imported_but_nothing_patched() -> None:
    out = run("""
        import gevent, gevent.monkey
        from gnsqsync.runtime import choose
        use(choose())
        use(choose("gevent"))
    """)
    assert out.split() == ["threads", "gevent"]


def test_patched_before_the_import() -> None:
    """As gevent's manual wants it: first thing in the program."""
    out = run("""
        import sys
        for name in [name for name in sys.modules if name.startswith("gnsqsync")]:
            del sys.modules[name]
        import gevent.monkey
        gevent.monkey.patch_all()
        from gnsqsync.addresses import Address
        from tests.support.listening import listen
        from gnsqsync.runtime import choose
        use(choose())
    """)
    assert out == "gevent"


def test_patched_after_the_import() -> None:
    """As gunicorn's gevent worker does with --preload: the application was imported before."""
    out = run("""
        import gnsqsync, gnsqsync.runtime.threads
        from gnsqsync.runtime import choose
        import gevent.monkey
        gevent.monkey.patch_all()
        use(choose())
    """)
    assert out == "gevent"


def test_greenlets_are_used_where_all_is_patched() -> None:
    """Ten tasks that sleep in patched time.sleep() beside each other, in one OS thread."""
    run("""
        import gevent.monkey
        gevent.monkey.patch_all()
        import time
        from gnsqsync.runtime import choose
        runtime = choose()
        idents = set()
        def work():
            time.sleep(0.2)
            idents.add(gevent.monkey.get_original("_thread", "get_ident")())
        start = time.monotonic()
        tasks = [runtime.spawn(str(n), work) for n in range(50)]
        assert all(task.join(30) for task in tasks)
        assert time.monotonic() - start < 5
        assert len(idents) == 1
        assert runtime.call_blocking(gevent.getcurrent) is gevent.getcurrent()
    """)


@pytest.mark.parametrize("options", ["thread=False", "socket=False"])
def test_half_patched_is_refused_with_the_way_out(options: str) -> None:
    patched, other = ("socket", "threading") if "thread" in options else ("threading", "socket")
    out = run(f"""
        import gevent.monkey
        gevent.monkey.patch_all({options})
        from gnsqsync.errors import ConfigError
        from gnsqsync.runtime import choose
        try:
            choose()
        except ConfigError as error:
            print(error)
    """)
    assert f"patched {patched} but not {other}" in out
    assert "runtime='gevent'" in out
    assert ("runtime='threads'" in out) == (patched == "socket")


@pytest.mark.parametrize("patch", ["patch_all(thread=False)", "patch_socket()"])
@pytest.mark.parametrize("name", ["threads", "gevent"])
def test_sockets_patched_only(patch: str, name: str) -> None:
    out = run(f"""
        import gevent.monkey
        gevent.monkey.{patch}
        from gnsqsync.runtime import choose
        use(choose("{name}"))
    """)
    assert out == name


def test_threads_stay_native_where_only_sockets_are_patched() -> None:
    run("""
        import gevent.monkey
        gevent.monkey.patch_all(thread=False)
        import socket, threading
        from gnsqsync.runtime import choose
        runtime = choose("threads")
        listener = listen(runtime, Address("127.0.0.1", 0))
        client = runtime.connect(listener.address, 10)
        server = listener.accept(10)
        for end in (listener, client, server):
            assert not isinstance(end._sock, socket.socket), "a socket of gevent"
        native = threading.Event()
        task = runtime.spawn("setter", native.set)
        assert native.wait(10)
        for end in (listener, client, server):
            end.close()
    """)


@pytest.mark.parametrize("patch", ["patch_all(socket=False)", "patch_thread()"])
def test_threads_patched_only(patch: str) -> None:
    out = run(f"""
        import gevent.monkey
        gevent.monkey.{patch}
        from gnsqsync.errors import ConfigError
        from gnsqsync.runtime import choose
        try:
            choose("threads")
        except ConfigError as error:
            assert "threads are greenlets" in str(error)
            use(choose("gevent"))
    """)
    assert out == "gevent"


def test_threads_are_refused_where_they_are_greenlets() -> None:
    out = run("""
        import gevent.monkey
        gevent.monkey.patch_all()
        from gnsqsync.errors import ConfigError
        from gnsqsync.runtime import choose
        try:
            choose("threads")
        except ConfigError as error:
            print(error)
        use(choose("gevent"))
    """)
    first, last = out.splitlines()
    assert "runtime='gevent'" in first
    assert "thread=False" in first
    assert last == "gevent"


@pytest.mark.parametrize("name", ["None", "'threads'", "'gevent'"])
def test_patching_after_the_first_use_is_refused(name: str) -> None:
    out = run(f"""
        import gnsqsync
        from gnsqsync.errors import ConfigError
        from gnsqsync.runtime import choose
        runtime = choose({name})
        runtime.spawn("before", len, "").join()
        import gevent.monkey
        gevent.monkey.patch_all()
        for use in (lambda: runtime.spawn("after", len, ""), choose, lambda: choose(runtime),
                    lambda: choose("gevent")):
            try:
                use()
            except ConfigError as error:
                print(error)
    """)
    lines = out.splitlines()
    assert len(lines) == 4
    for line in lines:
        assert "patched socket and threading by now" in line
        assert "neither socket nor threading when gnsqsync was first used" in line
        assert "before the first start() or publish()" in line


def test_a_refused_choice_is_not_a_first_use() -> None:
    """An application may catch the error of a half patched process and patch the rest."""
    out = run("""
        import gevent.monkey
        gevent.monkey.patch_socket()
        from gnsqsync.errors import ConfigError
        from gnsqsync.runtime import choose
        try:
            choose()
        except ConfigError:
            gevent.monkey.patch_thread()
        use(choose())
    """)
    assert out == "gevent"
