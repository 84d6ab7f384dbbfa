"""Runs of ``python -m tests.chaos`` beside each other: they mostly wait, so three take little more
than one. Each is started as soon as there is room, in the order of the tests that ask for them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import leftovers, realnsq
from tests.support.leftovers import Alive
from tests.support.needs import missing
from tests.support.servers import ROOT

# Under pytest-xdist another worker may have a file like this one.
SIDE_BY_SIDE = 2 if os.environ.get("PYTEST_XDIST_WORKER") else 3
RUN_SECONDS = 240.0
# Seed of the sample in the second ring, and of the deliberate bugs, which have to show in each run.
SEED = 7


class Run(NamedTuple):
    """One command: a scenario in these worlds, perhaps with a deliberate bug."""

    scenario: str
    world: str = "both"
    mutation: str | None = None
    seed: int = SEED

    @property
    def words(self) -> list[str]:
        words = ["--scenario", self.scenario, "--world", self.world, "--seed", str(self.seed)]
        return words + (["--mutation", self.mutation] if self.mutation else [])


class Finished(NamedTuple):
    status: int
    output: str


class Runs:
    """Starts what is wanted and collects what came of it."""

    def __init__(self, wanted: list[Run]) -> None:
        self._waiting = wanted
        self._running: dict[Run, subprocess.Popen[bytes]] = {}
        self._finished: dict[Run, Finished] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="chaos-runs-")

    def look(self) -> None:
        """Note what has ended, and start what there is room for."""
        for run, process in list(self._running.items()):
            status = process.poll()
            if status is not None:
                del self._running[run]
                self._finished[run] = Finished(status, self._path(run).read_text(errors="replace"))
        while self._waiting and len(self._running) < SIDE_BY_SIDE:
            run = self._waiting.pop(0)
            with open(self._path(run), "wb") as output:
                self._running[run] = subprocess.Popen(
                    [sys.executable, "-m", "tests.chaos", *run.words],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=ROOT,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                )

    def result(self, run: Run) -> Finished:
        """What came of it; waits for it, and meanwhile keeps the others going."""
        deadline = time.monotonic() + RUN_SECONDS
        while run not in self._finished:
            self.look()
            assert time.monotonic() < deadline, self._path(run).read_text(errors="replace")
            # Popen has no event for several processes.
            time.sleep(0.05)
        return self._finished[run]

    def kept(self, left: Alive) -> Alive:
        """What of this belongs to the runs that other tests wait for."""
        pids = {process.pid for process in self._running.values()}
        return Alive(set(), set(), set(), left.children & pids)

    def close(self) -> None:
        for process in self._running.values():
            # Its servers end with it: it is told as by Ctrl-C.
            process.send_signal(2)
        for process in self._running.values():
            process.wait(60)
        self._folder.cleanup()

    def _path(self, run: Run) -> Path:
        return Path(self._folder.name) / "-".join(map(str, run))


def _wanted(items: list[pytest.Item]) -> list[Run]:
    runs: list[Run] = []
    for item in items:
        callspec = getattr(item, "callspec", None)
        for value in callspec.params.values() if callspec is not None else ():
            if isinstance(value, Run) and value not in runs:
                runs.append(value)
    return runs


@pytest.fixture(scope="module")
def _all_runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    # Those of this file: the others may be another worker's.
    runs = Runs(_wanted([item for item in request.session.items if item.path == request.path]))
    leftovers.keepers.append(runs.kept)
    yield runs
    leftovers.keepers.remove(runs.kept)
    runs.close()


@pytest.fixture
def runs(request: pytest.FixtureRequest) -> Runs:
    """For tests whose parameter is a Run."""
    try:
        realnsq.find_or_build()
    except realnsq.Unavailable as error:
        missing(error)
    found: Runs = request.getfixturevalue("_all_runs")
    return found
