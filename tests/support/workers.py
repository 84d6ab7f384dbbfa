"""How many workers of pytest-xdist there are, and which tests go to one of them together.

``-n 0`` is one process, for a debugger and for what a test prints.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

# Tests mostly wait, for servers and for clocks.
_PER_PROCESSOR = 3

# Files that share one session of Spark: a JVM and its first query take as long as twenty tests. A
# file in no list here starts a JVM for itself. They come first, with those that start a JVM for
# each command, as they take minutes: what ends a run should be short.
_SESSIONS = {
    "Spark jobs": ("archive", "replay", "rollup", "demo", "installed", "processes"),
    "Spark": ("harness", "idle", "reached", "semantics", "sink", "source", "report"),
    "Spark SQL": ("batch", "delta", "examples", "object_store", "round_trip", "sql", "wide"),
}
_SESSION_OF = {
    f"tests/spark/test_{name}.py": session for session, names in _SESSIONS.items() for name in names
}


def pytest_configure() -> None:
    # They are for this run, and not for those of pytest that tests start.
    os.environ.pop("PYTEST_ADDOPTS", None)
    # Each worker, and each of the many hundred processes that tests start, would compile all that
    # it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = [*_SESSIONS]

    def place(item: pytest.Item) -> tuple[int, bool]:
        session = _SESSION_OF.get(_file_of(item.nodeid))
        where = len(order) if session is None else order.index(session)
        return where, not item.nodeid.startswith("tests/spark/")

    items.sort(key=place)


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """For ``-n auto``. One file is done before workers would have started; folders are for all."""
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None
    here = config.invocation_params.dir
    if len(config.args) == 1 and Path(here, _file_of(config.args[0])).is_file():
        return 0
    return _PER_PROCESSOR * len(os.sched_getaffinity(0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """``--dist loadfile``: the tests of a file share its servers, some files a session of Spark."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class LoadSessionScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = _file_of(nodeid)
            return _SESSION_OF.get(file, file)

    # In the order of collection, and not by the number of tests, which says nothing of their time.
    config.option.loadscopereorder = False
    return LoadSessionScheduling(config, log)
