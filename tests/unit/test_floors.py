"""The floors of the house, read from the imports: what may know what (design: floors)."""

from __future__ import annotations

import ast

import pytest

from tests.support import house
from tests.support.house import GROUND, Import, circles, imports, module_graph, sources
from tests.support.interpreter import run_script

# Each room and the rooms that it may import from. All may know the flat modules, which know none
# of them. Two rooms of one floor do not know each other.
KNOWS = {
    "wire": set[str](),
    "daemon": set[str](),
    "policy": set[str](),
    "runtime": {"policy"},
    "connection": {"wire", "policy", "runtime"},
    "http": {"runtime", "wire"},
    "discovery": {"http", "policy", "runtime"},
    "cluster": {"connection", "http", "runtime", "wire"},
    "writer": {"connection", "discovery", "policy", "runtime", "wire"},
    "reader": {"cluster", "connection", "discovery", "http", "policy", "runtime", "wire", "writer"},
    "dead_letters": {"cluster", "discovery", "http", "reader", "runtime", "writer"},
    "process": {"cluster", "dead_letters", "policy", "reader", "runtime", "writer"},
    "testing": {"writer"},
    "outbox": {"policy", "process", "reader", "runtime", "writer"},
    "commands": {"cluster", "dead_letters", "http", "process", "reader", "writer"},
    # A server in a process of its own: of the client it knows the bytes.
    "embedded": {"daemon", "wire"},
    # Programs see what users see, and what they share.
    "spark": {"cluster", "process"},
    "contrib": {"outbox", "process"},
    "django": {"cluster", "commands", "dead_letters", "outbox", "process", "testing"},
    "flask": {"cluster", "commands", "dead_letters", "outbox", "process", "testing"},
    "admin": {"cluster", "daemon", "dead_letters", "http"},
    "cli": {"cluster", "commands", "daemon", "dead_letters", "process", "spark"},
}
TOP = {
    "__init__",
    "__main__",
    "_version",
    "addresses",
    "bodies",
    "durable",
    "envelope",
    "errors",
    "foreign",
    "hints",
    "keywords",
    "message",
    "middleware",
    "observer",
    "options",
    "prometheus",
    "stats",
}
PROGRAMS = {"cli", "contrib", "django", "flask", "spark"}
# What programs may know of the flat modules.
PUBLIC = {
    "gnsqsync",
    "gnsqsync.durable",
    "gnsqsync.envelope",
    "gnsqsync.errors",
    "gnsqsync.foreign",
    "gnsqsync.hints",
    "gnsqsync.keywords",
    "gnsqsync.middleware",
    "gnsqsync.options",
    "gnsqsync.stats",
}

# What a module may import beside what its room may.
EXCEPTIONS = {
    # It lists the public names, which are loaded on first use.
    "gnsqsync": {"*"},
    # ``python -m gnsqsync`` is the command line.
    "gnsqsync.__main__": {"gnsqsync.cli"},
    # They start the embedded servers, for development.
    "gnsqsync.cli": {"gnsqsync.admin", "gnsqsync.embedded"},
    "gnsqsync.django": {"gnsqsync.embedded"},
    "gnsqsync.flask": {"gnsqsync.embedded"},
    # It mounts the pages, which another floor serves.
    "gnsqsync.django.nsqadmin": {"gnsqsync.admin", "gnsqsync.addresses"},
    # Programs, like those above.
    "gnsqsync.admin.__main__": {"gnsqsync.process.output"},
    "gnsqsync.admin.serving": {"gnsqsync.process.signals"},
    "gnsqsync.embedded.__main__": {"gnsqsync.process.output", "gnsqsync.process.signals"},
    # It runs beside the user's tests, not in the server, and reads as any client does.
    "gnsqsync.embedded.pytest_plugin": {"gnsqsync", "gnsqsync.admin"},
    # The exporter logs which servers do not answer, at growing intervals.
    "gnsqsync.admin.cluster_metrics": {"gnsqsync.runtime.troubles"},
    # Watch reads as any client does.
    "gnsqsync.admin.watch": {"gnsqsync"},
    # The page is served by the one HTTP server.
    "gnsqsync.process.web_page": {
        "gnsqsync.daemon.http_connection",
        "gnsqsync.daemon.http_threads",
        "gnsqsync.daemon.wsgi",
    },
    # The page of metrics; loaded only where it is asked for.
    "gnsqsync.process.metrics_page": {"gnsqsync.prometheus", "gnsqsync"},
    "gnsqsync.prometheus": {"gnsqsync"},
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
    # get_native_id() only, which gevent does not replace: whether this is the main thread.
    "gnsqsync.foreign": {"_thread"},
    # gethostname() only: test_options_take_only_the_host_name_from_socket.
    "gnsqsync.options": {"socket"},
    # publish_async() returns the standard library's Future, which makes itself.
    "gnsqsync.writer": {"concurrent"},
    "gnsqsync.testing": {"concurrent"},
    "gnsqsync.connection.publish_slot": {"concurrent"},
    "gnsqsync.middleware": {"concurrent"},
    "gnsqsync.contrib": {"concurrent"},
    "gnsqsync.spark.publishing": {"concurrent"},
    # In Spark's processes, where nobody has gevent: they wait for many logs at a time.
    "gnsqsync.spark.read_task": {"concurrent"},
    "gnsqsync.spark.source": {"concurrent"},
    "gnsqsync.spark.tally": {"threading"},
    # Requests to an object store side by side; the pool ends with the call.
    "gnsqsync.spark.object_store": {"concurrent"},
    "gnsqsync.spark.jobs.series": {"concurrent"},
    # It asks all servers side by side, in whichever web server it runs.
    "gnsqsync.admin": {"concurrent", "queue", "threading"},
    # Used in the processes of the two.
    "gnsqsync.daemon.parent": {"gevent"},
    # The HTTP server. It must answer where the threads or greenlets of Readers hang.
    "gnsqsync.daemon.http_connection": {"socket"},
    "gnsqsync.daemon.http_threads": {"socket", "threading"},
    # gethostname() only.
    "gnsqsync.admin.actions": {"socket"},
    # The command, in a process of its own on gevent's server.
    "gnsqsync.admin.__main__": {"gevent"},
    "gnsqsync.admin.serving": {"gevent", "socket"},
    # Programs above the public API: they call it in a pool and wait for its Futures.
    "gnsqsync.cli": {"concurrent"},
    # It waits for processes to end, in a process that is about to end.
    "gnsqsync.process.descendants": {"select"},
    # Signals on the loop of a server that runs on gevent.
    "gnsqsync.process.signals": {"gevent"},
}
# Bytes and decisions take the time as an argument, so that tests need no clock.
WITHOUT_CLOCK = ("gnsqsync.wire", "gnsqsync.policy")


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
    if any(target == whole for whole in exceptions_for(name, EXCEPTIONS)) or within(
        target, exceptions_for(name, EXCEPTIONS) - {"gnsqsync"}
    ):
        return True
    here, there = house.room_of(name, KNOWS), house.room_of(target, KNOWS)
    if target == "gnsqsync":
        return here in PROGRAMS
    if there == GROUND:
        return here not in PROGRAMS or target in PUBLIC or what.types_only
    if here in PROGRAMS and what.types_only and there not in PROGRAMS | {"embedded"}:
        # For annotations the types of public results may be named where they are.
        return True
    return here == there or (here != GROUND and there in KNOWS[here])


def broken_floors(modules: dict[str, str]) -> list[str]:
    return [
        f"{name}:{what.line} imports {what.target}"
        for name, source in modules.items()
        for what in imports(name, source, modules)
        if what.target.split(".")[0] == "gnsqsync" and not may_import(name, what)
    ]


def broken_seam(modules: dict[str, str]) -> list[str]:
    return [
        f"{name}:{what.line} imports {what.target}"
        for name, source in modules.items()
        for what in imports(name, source, modules)
        if what.target.split(".")[0] in SEAM
        and what.target.split(".")[0] not in exceptions_for(name, SEAM_EXCEPTIONS)
    ]


def clocks(modules: dict[str, str]) -> list[str]:
    return [
        f"{name}:{what.line} imports {what.target}"
        for name, source in modules.items()
        if within(name, set(WITHOUT_CLOCK))
        for what in imports(name, source, modules)
        if what.target.split(".")[0] in ("time", "datetime")
    ]


def test_imports_go_down_the_floors() -> None:
    assert broken_floors(sources()) == []


def test_the_rules_of_the_rooms_have_no_circle() -> None:
    assert circles(KNOWS) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not for types either: what two modules know of each other belongs into one, or a third."""
    assert circles(module_graph(sources())) == []


def test_a_circle_is_found() -> None:
    modules = {
        "gnsqsync.a": "from gnsqsync.b import B",
        "gnsqsync.b": "if TYPE_CHECKING:\n    from gnsqsync.c import C",
        "gnsqsync.c": "def f():\n    from gnsqsync.a import A",
        "gnsqsync.d": "from gnsqsync.a import A",
    }
    assert circles(module_graph(modules)) == [["gnsqsync.a", "gnsqsync.b", "gnsqsync.c"]]


def test_at_the_top_lie_what_a_user_imports_and_the_rooms() -> None:
    assert {path.stem for path in house.PACKAGE.glob("*.py")} == TOP
    assert house.rooms_of(sources()) == set(KNOWS)


def test_the_pictures_of_the_floors_are_of_these_imports() -> None:
    for path, colours in house.PICTURES.items():
        assert path.read_text() == house.draw(colours), "run: python -m tests.support.house"


def test_only_the_runtime_makes_threads_and_sockets() -> None:
    assert broken_seam(sources()) == []


def test_there_is_one_http_server() -> None:
    """Others read requests in ways of their own, such as two Content-Lengths."""
    others = {"gevent.pywsgi", "http.server", "socketserver", "wsgiref"}
    modules = sources()
    found = [
        f"{name}:{what.line} imports {what.target}"
        for name, source in modules.items()
        for what in imports(name, source, modules)
        if within(what.target, others)
    ]
    assert found == []


def test_bytes_and_decisions_have_no_clock() -> None:
    assert clocks(sources()) == []


def test_options_take_only_the_host_name_from_socket() -> None:
    tree = ast.parse(sources()["gnsqsync.options"])
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
        ("gnsqsync.options", "from gnsqsync.wire import frames"),
        ("gnsqsync.options", "from gnsqsync import __version__"),
        ("gnsqsync.wire.frames", "def f():\n    from gnsqsync.policy.rdy import RdyAllocator"),
        ("gnsqsync.runtime.threads", "from gnsqsync.wire.frames import FrameDecoder"),
        ("gnsqsync.connection.stream", "from gnsqsync.reader import Reader"),
        ("gnsqsync.connection.stream", "from gnsqsync import reader"),
        (
            "gnsqsync.connection.stream",
            "if TYPE_CHECKING:\n    from gnsqsync.reader.reader import Reader",
        ),
        ("gnsqsync.connection.stream", "from gnsqsync.embedded.broker import Broker"),
        ("gnsqsync.connection.stream", "from gnsqsync.http.clients import NsqdHTTP"),
        ("gnsqsync.writer.writer", "from gnsqsync.reader.reader import Reader"),
        ("gnsqsync.embedded.server", "from gnsqsync.http.clients import NsqdHTTP"),
        ("gnsqsync.reader.reader", "from gnsqsync.embedded import Nsqd"),
        ("gnsqsync.reader.reader", "from gnsqsync.cli import main"),
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
        ("gnsqsync.reader.reader", "import threading"),
        ("gnsqsync.connection.stream", "from gevent import socket"),
        ("gnsqsync.connection.stream", "def f():\n    import select"),
        ("gnsqsync.options", "import selectors"),
        ("gnsqsync.cli.pub", "from threading import Thread"),
        ("gnsqsync.wire.frames", "import queue as q"),
    ],
)
def test_a_wrong_seam_is_found(name: str, line: str) -> None:
    assert len(broken_seam({name: line})) == 1


def test_a_clock_is_found() -> None:
    found = clocks({"gnsqsync.policy.rdy": "import time", "gnsqsync.runtime.timer": "import time"})
    assert len(found) == 1


def test_a_client_without_nsqlookupds_loads_no_dependency() -> None:
    """The import loads none; Reader and Writer load no HTTP client."""
    out = run_script("""
        import sys
        import gnsqsync
        assert gnsqsync.__version__
        gnsqsync.Message, gnsqsync.Requeue, gnsqsync.ConnectionOptions()
        loaded = {name.split(".")[0] for name in sys.modules}
        print(sorted(loaded & {"gevent", "requests", "snappy", "urllib3", "click", "rich"}))
        import gnsqsync.commands.integrations
        gnsqsync.Reader("orders", "shop", nsqd_tcp_addresses=["127.0.0.1:4150"])
        gnsqsync.Writer(["127.0.0.1:4150"]).close()
        print(sorted(sys.modules.keys() & {"requests", "urllib3"}))
    """)
    assert out == "[]\n[]"


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
        if importlib.util.find_spec("django.tasks") is None:
            names = [name for name in names if not name.startswith("gnsqsync.django.tasks")]
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
        assert "gnsqsync.runtime.greenlets" in names and "gnsqsync.options" in names
        assert made == [], made
        assert threading.active_count() == 1
        assert sockets() == before
        from gevent._hub_local import get_hub_if_exists
        assert get_hub_if_exists() is None

        # The watch sees what is made.
        scope = {"__name__": "gnsqsync.bad", "threading": threading, "socket": socket}
        exec("lock = threading.Lock()", scope)
        exec("sock = socket.socket(); sock.close()", scope)
        threading.Lock()
        print(made)
        """,
    )
    assert out == "['gnsqsync.bad:1 Lock', 'gnsqsync.bad:1 socket']"
