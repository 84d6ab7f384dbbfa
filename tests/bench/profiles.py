"""Where the time of ours goes, by function: samples of py-spy, which costs ours next to nothing.

A function's time is its own and that of the system calls and C functions that it calls.
"""

from __future__ import annotations

import re
import shutil
import sysconfig
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.bench import clients, rows
from tests.bench.cells import Bench
from tests.bench.clients import Client
from tests.bench.progress import Progress
from tests.bench.rows import Row
from tests.bench.under import Unavailable, run_under

# Where goals are near or missed; but threads that wait for each other look busy to the profiler.
CHOSEN = (
    ("publish-1", "ours"),
    ("publish-16", "ours-gevent"),
    ("consume-1", "ours"),
)
MESSAGES = 300_000
RATE = 500
SHOWN = 8

Points = list[dict[str, Any]]

_FRAME = re.compile(r"(.+) \((.+?)(?::\d+)?\)$")


def py_spy() -> str:
    """The program; Unavailable where it is not installed."""
    tool = shutil.which("py-spy", path=f"{sysconfig.get_path('scripts')}:{Path('/usr/bin')}")
    if tool is None:
        raise Unavailable("no py-spy; pip install '.[bench]'")
    return tool


def run(bench: Bench, progress: Progress) -> Points:
    """For each row and client the functions with the largest part of the samples."""
    tool = py_spy()
    progress.total(len(CHOSEN))
    points: Points = []
    for row_name, client_name in CHOSEN:
        (row,) = (row for row in rows.ROWS if row.name == row_name)
        (client,) = clients.select([client_name])
        progress.begin(f"profile: {row.name} {client.name}")
        for function, part in _parts(_sample(bench, row, client, tool)).most_common(SHOWN):
            points.append(
                {"row": row.name, "client": client.name, "function": function, "part": part}
            )
    return points


def _sample(bench: Bench, row: Row, client: Client, tool: str) -> str:
    with TemporaryDirectory() as folder:
        out = Path(folder) / "stacks"
        command = [tool, "record", "--nonblocking", f"--rate={RATE}", "--format=raw"]
        command += [f"--output={out}", "--"]
        run_under(command, bench, row, client, MESSAGES, f"profile-{row.name}-{client.name}")
        return out.read_text()


def _parts(stacks: str) -> Counter[str]:
    """The part of each function in the samples within gnsqsync and what it calls."""
    counted: Counter[str] = Counter()
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if any("gnsqsync/" in frame for frame in frames):
            counted[_name(frames[-1])] += int(count)
    total = counted.total()
    return Counter({name: count / total for name, count in counted.items()})


def _name(frame: str) -> str:
    """``gnsqsync/x/stream.py: receive`` of py-spy's ``receive (gnsqsync/x/stream.py:80)``."""
    found = _FRAME.match(frame)
    if found is None:
        return frame
    function, path = found.groups()
    for root in ("gnsqsync/", "gevent/"):
        if root in path:
            path = root + path.rpartition(root)[2]
    return f"{path}: {function}"


def table(points: Points) -> str:
    return "".join(
        f"  {p['row']:<11} {p['client']:<12} {p['part']:>6.1%} {p['function']}\n" for p in points
    )
