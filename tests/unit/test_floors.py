"""The floors of the house, read from the imports: what may know what (design: floors)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.interpreter import run_script

PACKAGE = Path(__file__).parents[2] / "gnsqsync"

# The flat modules of floor 0; every other flat module is of floor 3.
GROUND = {"_version", "errors", "addresses", "config", "message"}
PACKAGES = {
    "wire": 1,
    "policy": 1,
    "runtime": 1,
    "net": 2,
    "embedded": 2,
    "cli": 4,
    "django": 4,
    "flask": 4,
    "spark": 4,
    "prometheus": 4,
    "exposing": 4,
}
# Floor 4 sees what users see.
PUBLIC = {"gnsqsync", "gnsqsync.errors"}

# What only programs need: the commands of the integrations, and what they give to tests.
PROGRAMS = {
    # Names and handlers are checked before there is a Reader, or a message for them.
    "gnsqsync.config",
    "gnsqsync.log_output",
    "gnsqsync.memory",
    "gnsqsync.output",
    "gnsqsync.programs",
    "gnsqsync.reloading",
    "gnsqsync.settings",
    "gnsqsync.supervisor",
    "gnsqsync.telling",
}

# What a module may import of gnsqsync beside what its floor allows.
EXCEPTIONS = {
    # It lists the public names, which are loaded on first use.
    "gnsqsync": {"*"},
    # They start the embedded servers, for development; the command line starts Spark's jobs.
    "gnsqsync.cli": {"gnsqsync.embedded", "gnsqsync.spark", "gnsqsync.exposing"} | PROGRAMS,
    # A program like those of floor 4.
    "gnsqsync.embedded.__main__": {"gnsqsync.output"},
    # It runs beside the user's tests, not in the server, and reads as any client does.
    "gnsqsync.embedded.pytest_plugin": {"gnsqsync"},
    "gnsqsync.django": {"gnsqsync.embedded", "gnsqsync.exposing"} | PROGRAMS,
    "gnsqsync.flask": {"gnsqsync.embedded", "gnsqsync.exposing"} | PROGRAMS,
    # Its processes are Spark's, where nobody can configure logging.
    "gnsqsync.spark": {"gnsqsync.log_output"},
    # What the commands that consume share, above them only.
    "gnsqsync.exposing": {"gnsqsync.prometheus", "gnsqsync.observer"},
}

# Who may name a module that makes threads, greenlets, queues or sockets.
SEAM = {
    "_thread",
    "asyncio",
    "concurrent",
    "gevent",
    "greenlet",
    "multiprocessing",
    "queue",
    "select",
    "selectors",
    "socket",
    "socketserver",
    "threading",
}
SEAM_EXCEPTIONS = {
    "gnsqsync.runtime": SEAM,
    # A process of its own, on gevent's servers; it never meets a client's threads.
    "gnsqsync.embedded": {"gevent", "socket"},
    # gethostname() only: test_config_takes_only_the_host_name_from_socket.
    "gnsqsync.config": {"socket"},
    # publish_async() returns the standard library's Future, which makes itself.
    "gnsqsync.writer": {"concurrent"},
    "gnsqsync.publication": {"concurrent"},
    "gnsqsync.net.outbox": {"concurrent"},
    "gnsqsync.memory": {"concurrent"},
    "gnsqsync.spark.publishing": {"concurrent"},
    # Programs above the public API: they call it in a pool and wait for its Futures.
    "gnsqsync.cli": {"concurrent"},
}
# Bytes and decisions take the time as an argument, so that tests need no clock.
WITHOUT_CLOCK = ("gnsqsync.wire", "gnsqsync.policy")


class Import(NamedTuple):
    """One import: what is imported, by which line, and whether for types only."""

    target: str
    line: int
    types_only: bool


def sources() -> dict[str, str]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text()
    return found


def imports(name: str, source: str, modules: set[str]) -> Iterator[Import]:
    """All imports of a module, those inside functions too."""

    def walk(node: ast.AST, types_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, child.lineno, types_only)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{name}:{child.lineno}: a relative import"
                assert child.module is not None
                for alias in child.names:
                    whole = f"{child.module}.{alias.name}"
                    target = whole if whole in modules else child.module
                    yield Import(target, child.lineno, types_only)
            elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                for part in child.body:
                    yield from walk(ast.Module([part], []), True)
                yield from walk(ast.Module(child.orelse, []), types_only)
            else:
                yield from walk(child, types_only)

    return walk(ast.parse(source), False)


def part_of(name: str) -> str:
    """The package below gnsqsync that a module is in, "" for the flat ones."""
    words = name.split(".")
    return words[1] if len(words) > 1 and words[1] in PACKAGES else ""


def floor_of(name: str) -> int:
    words = name.split(".")
    if len(words) == 1:
        return 4
    if words[1] in PACKAGES:
        return PACKAGES[words[1]]
    return 0 if words[1] in GROUND else 3


def within(name: str, wholes: set[str]) -> bool:
    """Whether ``name`` is one of ``wholes`` or inside of one."""
    return "*" in wholes or any(name == whole or name.startswith(f"{whole}.") for whole in wholes)


def exceptions_for(name: str, table: dict[str, set[str]]) -> set[str]:
    """The entries of ``table`` for the module and for the packages around it, but the root's."""
    words = name.split(".")
    around = {".".join(words[:count]) for count in range(2, len(words) + 1)} | {name}
    return set().union(*(table[whole] for whole in around if whole in table))


def may_import(name: str, what: Import) -> bool:
    target = what.target
    if within(target, exceptions_for(name, EXCEPTIONS)):
        return True
    here, there = part_of(name), part_of(target)
    if here and here == there:
        return True
    floor, other = floor_of(name), floor_of(target)
    if floor == 4:
        # For annotations the types of public results may be named where they are.
        return target in PUBLIC or (what.types_only and other < 4)
    if there == "embedded":
        return False
    if here == "embedded":
        return other <= 1
    return other < floor or (other == floor and here == there)


def broken_floors(modules: dict[str, str]) -> list[str]:
    return [
        f"{name}:{what.line} (floor {floor_of(name)}) imports {what.target}"
        f" (floor {floor_of(what.target)})"
        for name, source in modules.items()
        for what in imports(name, source, set(modules))
        if what.target.split(".")[0] == "gnsqsync" and not may_import(name, what)
    ]


def broken_seam(modules: dict[str, str]) -> list[str]:
    return [
        f"{name}:{what.line} imports {what.target}"
        for name, source in modules.items()
        for what in imports(name, source, set(modules))
        if what.target.split(".")[0] in SEAM
        and what.target.split(".")[0] not in exceptions_for(name, SEAM_EXCEPTIONS)
    ]


def clocks(modules: dict[str, str]) -> list[str]:
    return [
        f"{name}:{what.line} imports {what.target}"
        for name, source in modules.items()
        if within(name, set(WITHOUT_CLOCK))
        for what in imports(name, source, set(modules))
        if what.target.split(".")[0] in ("time", "datetime")
    ]


def test_imports_go_down_the_floors() -> None:
    assert broken_floors(sources()) == []


def test_only_the_runtime_makes_threads_and_sockets() -> None:
    assert broken_seam(sources()) == []


def test_bytes_and_decisions_have_no_clock() -> None:
    assert clocks(sources()) == []


def test_config_takes_only_the_host_name_from_socket() -> None:
    tree = ast.parse(sources()["gnsqsync.config"])
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "socket"
    }
    assert used <= {"gethostname"}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gnsqsync.errors", "import gnsqsync.runtime"),
        ("gnsqsync.config", "from gnsqsync.wire import frames"),
        ("gnsqsync.config", "from gnsqsync import __version__"),
        ("gnsqsync.wire.frames", "def f():\n    from gnsqsync.policy.rdy import RdyAllocator"),
        ("gnsqsync.runtime.threads", "from gnsqsync.wire.frames import FrameDecoder"),
        ("gnsqsync.net.stream", "from gnsqsync.reader import Reader"),
        ("gnsqsync.net.stream", "from gnsqsync import reader"),
        ("gnsqsync.net.stream", "if TYPE_CHECKING:\n    from gnsqsync.reader import Reader"),
        ("gnsqsync.net.stream", "from gnsqsync.embedded.broker import Broker"),
        ("gnsqsync.embedded.server", "from gnsqsync.net.http import NsqdHTTP"),
        ("gnsqsync.reader", "from gnsqsync.embedded import Nsqd"),
        ("gnsqsync.reader", "from gnsqsync.cli import main"),
        ("gnsqsync.cli.pub", "from gnsqsync.writer import Writer"),
        ("gnsqsync.cli.pub", "from gnsqsync.flask import NSQ"),
        ("gnsqsync.flask", "from gnsqsync.django import get_writer"),
    ],
)
def test_a_wrong_floor_is_found(name: str, line: str) -> None:
    modules = dict.fromkeys([*sources(), "gnsqsync.reader"], "")
    assert len(broken_floors({**modules, name: line})) == 1


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gnsqsync.reader", "import threading"),
        ("gnsqsync.net.stream", "from gevent import socket"),
        ("gnsqsync.net.stream", "def f():\n    import select"),
        ("gnsqsync.config", "import selectors"),
        ("gnsqsync.cli.pub", "from threading import Thread"),
        ("gnsqsync.wire.frames", "import queue as q"),
    ],
)
def test_a_wrong_seam_is_found(name: str, line: str) -> None:
    assert len(broken_seam({name: line})) == 1


def test_a_clock_is_found() -> None:
    assert len(clocks({"gnsqsync.policy.rdy": "import time", "gnsqsync.timer": "import time"})) == 1


def test_import_of_the_package_loads_no_dependency() -> None:
    out = run_script("""
        import sys
        import gnsqsync
        assert gnsqsync.__version__
        gnsqsync.Message, gnsqsync.Requeue, gnsqsync.ConnectionOptions()
        loaded = {name.split(".")[0] for name in sys.modules}
        print(sorted(loaded & {"gevent", "requests", "snappy", "urllib3", "click", "rich"}))
    """)
    assert out == "[]"


# Notes who of gnsqsync makes anything of these while all its modules are imported.
WATCH = """
    import importlib, os, pkgutil, socket, sys, threading, queue
    import gevent, gevent.event, gevent.lock, gevent.queue, gevent.socket
    import requests, ssl, logging, concurrent.futures

    OPTIONAL = {"click", "rich", "django", "flask", "prometheus_client", "pytest"}
    OPTIONAL |= {"pyspark", "pyarrow", "fsspec", "matplotlib"}
    made = []

    def watch(module, name):
        original = getattr(module, name)
        class Watched:
            def __call__(self, *args, **kwargs):
                caller = sys._getframe(1)
                if caller.f_globals.get("__name__", "").startswith("gnsqsync"):
                    made.append(f"{caller.f_globals['__name__']}:{caller.f_lineno} {name}")
                return original(*args, **kwargs)
            def __getattr__(self, attribute):
                return getattr(original, attribute)
            def __mro_entries__(self, bases):
                return (original,)
            def __or__(self, other):
                return original | other
            def __ror__(self, other):
                return other | original
            def __getitem__(self, item):
                return original[item]
        setattr(module, name, Watched())

    for module, names in {
        threading: "Lock RLock Condition Event Semaphore BoundedSemaphore Thread Timer local",
        queue: "Queue SimpleQueue LifoQueue PriorityQueue",
        socket: "socket create_connection create_server socketpair getaddrinfo",
        gevent: "spawn Greenlet get_hub",
        gevent.event: "Event AsyncResult",
        gevent.lock: "Semaphore BoundedSemaphore RLock",
        gevent.queue: "Queue JoinableQueue",
        requests: "Session",
        concurrent.futures: "Future ThreadPoolExecutor",
    }.items():
        for name in names.split():
            watch(module, name)

    def import_all():
        import gnsqsync
        import django.conf
        apps = ["admin", "auth", "contenttypes", "messages", "sessions"]
        apps = [f"django.contrib.{name}" for name in apps]
        apps += ["gnsqsync.django", "gnsqsync.django.outbox"]
        django.conf.settings.configure(INSTALLED_APPS=apps)
        django.setup()
        names = ["gnsqsync"]
        skip = lambda name: None
        for info in pkgutil.walk_packages(gnsqsync.__path__, "gnsqsync.", onerror=skip):
            names.append(info.name)
        for name in names:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name.split(".")[0] not in OPTIONAL:
                    raise
        return names
"""


def test_nothing_is_made_at_import() -> None:
    out = run_script(
        WATCH,
        """
        def sockets():
            found = set()
            for number in os.listdir("/proc/self/fd"):
                try:
                    found.add(os.readlink(f"/proc/self/fd/{number}"))
                except OSError:
                    pass
            return {name for name in found if name.startswith("socket:")}

        before = sockets()
        names = import_all()
        assert "gnsqsync.runtime.greenlets" in names and "gnsqsync.config" in names
        assert made == [], made
        assert threading.active_count() == 1
        assert sockets() == before
        from gevent._hub_local import get_hub_if_exists
        assert get_hub_if_exists() is None
        """,
    )
    assert out == ""


def test_the_watch_sees_what_is_made() -> None:
    out = run_script(
        WATCH,
        """
        scope = {"__name__": "gnsqsync.bad", "threading": threading, "socket": socket}
        exec("lock = threading.Lock()", scope)
        exec("sock = socket.socket(); sock.close()", scope)
        threading.Lock()
        print(made)
        """,
    )
    assert out == "['gnsqsync.bad:1 Lock', 'gnsqsync.bad:1 socket']"
