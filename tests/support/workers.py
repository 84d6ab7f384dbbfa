"""The number of pytest-xdist's workers, and the tests that go to one worker together.

``-n 0`` runs tests in one process, for a debugger and for printed output.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

# Workers for each processor. Tests mostly wait, for servers and for clocks.
_PER_PROCESSOR = 3


def _files(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names)


# Files that share one session of Spark: a JVM and its first query take as long as twenty tests. A
# file of Spark in no list here starts a JVM for itself. Then files that share databases, their
# tables and the process that forks commands of Django, because each worker makes its own. They come
# first because they take minutes, and the end of a run should have short tests.
_SESSIONS = {
    "Spark jobs": _files("spark", "archive", "replay", "rollup", "demo", "installed", "processes"),
    "Spark": _files("spark", "harness", "idle", "semantics", "sink", "source", "report"),
    "Spark SQL": _files(
        "spark",
        "reached",
        "batch",
        "delta",
        "examples",
        "object_store",
        "round_trip",
        "sql",
        "wide",
    ),
    "three databases": (
        *_files("integration/django", "outbox", "inbox", "keys", "guide", "left_behind"),
        *_files("integration/sqlalchemy", "forks", "keys", "left_behind", "outbox"),
    ),
    "two databases": _files(
        "integration/django",
        "captured",
        "connections",
        "databases",
        "dead_letters",
        "eager",
        "middleware",
        "nsqadmin",
    ),
}
_SESSION_OF = {file: session for session, files in _SESSIONS.items() for file in files}

# Files that take most of a minute or more by themselves begin next, the longest first. At the end
# of a run such a file would have one processor, and the other processors nothing.
_LONG = (
    *_files("integration", "docs_site"),
    *_files("simulation", "simulation"),
    *_files("integration", "to_file_ends"),
    *_files("integration/django", "commands"),
    *_files("integration", "cli", "output_of_commands"),
    *_files("conformance", "16_nsqadmin"),
    *_files("component/reader", "hostile_nsqd"),
    *_files("integration", "default_log", "docs_tutorial"),
    *_files("conformance", "14_disk", "07_time"),
    *_files("integration", "processes", "faults", "web_outage", "doctor", "exit", "to_file"),
    *_files("chaos", "once", "scenarios"),
    *_files("integration", "nsqadmin_browser", "docs", "quickstarts", "packaging"),
)


def pytest_configure() -> None:
    # The options are for this run, and not for runs of pytest that tests start.
    os.environ.pop("PYTEST_ADDOPTS", None)
    # Otherwise each worker, and each of the hundreds of processes that tests start, would compile
    # all modules that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = [*_SESSIONS]

    def place(item: pytest.Item) -> int:
        file = _file_of(item.nodeid)
        if session := _SESSION_OF.get(file):
            return order.index(session)
        if file.startswith("tests/spark/"):
            return len(order)
        return len(order) + 1 + (_LONG.index(file) if file in _LONG else len(_LONG))

    items.sort(key=place)


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return the workers of ``-n auto``: none for one file, which is done before they start."""
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    here = config.invocation_params.dir
    if len(config.args) == 1 and Path(here, _file_of(config.args[0])).is_file():
        return 0
    return _PER_PROCESSOR * len(os.sched_getaffinity(0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler of ``--dist loadfile``: files that share servers have one worker."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class LoadSessionScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = _file_of(nodeid)
            return _SESSION_OF.get(file, file)

    # Files run in the order of collection. The number of their tests says nothing of their time.
    config.option.loadscopereorder = False
    return LoadSessionScheduling(config, log)
