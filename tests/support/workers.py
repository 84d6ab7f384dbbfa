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


def _files(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names)


# What shares one session of Spark, a JVM that takes longer to start than most tests take; and those
# that start one for themselves, so that no more than two run at a time. Then tests that share
# databases, their tables and the process that forks commands of Django: each worker makes its own.
# They come first, as they take minutes: what ends a run should be short.
_SESSIONS = {
    "Spark jobs": _files(
        "spark", "archive", "replay", "rollup", "demo", "examples", "installed", "processes"
    ),
    "Spark": _files(
        "spark", "batch", "harness", "idle", "reached", "semantics", "sink", "source", "report"
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
    """``--dist loadfile``: the tests of a file share its servers; some files share more."""
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
