"""What a message costs in user code, in the kernel, in system calls and switches, by perf stat.

It tells what a client pays for by itself from what it pays for as the floor does. Two runs of
different length are subtracted, which takes start and end out.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.bench import clients, rows
from tests.bench.cells import Bench
from tests.bench.clients import Client
from tests.bench.progress import Progress
from tests.bench.rows import Row
from tests.bench.under import Unavailable, run_under

CHOSEN = {
    "publish-1": ("ours", "floor"),
    "publish-16": ("ours", "floor", "ours-gevent", "floor-gevent"),
    "consume-2500-workers": ("ours", "floor"),
    "consume-2500": ("ours", "floor"),
    "consume-1": ("ours", "floor"),
}
MESSAGES = {"publish": (20_000, 120_000), "consume": (20_000, 220_000)}
# The events of perf, and what they are called here. Times are nanoseconds, here microseconds.
EVENTS = {
    "user_time": "user",
    "system_time": "system",
    "raw_syscalls:sys_enter": "calls",
    "syscalls:sys_enter_futex": "futex",
    "context-switches": "switches",
}
TITLES = {
    "user": "user us",
    "system": "system us",
    "calls": "system calls",
    "futex": "of these futex",
    "switches": "switches",
}

Points = list[dict[str, Any]]


def run(bench: Bench, progress: Progress) -> Points:
    """For each row and client the counts a message."""
    perf = shutil.which("perf")
    if perf is None or not _counts(perf):
        raise Unavailable("no perf that may count system calls; as root, with linux-tools")
    chosen = [row for row in rows.ROWS if row.name in CHOSEN]
    progress.total(2 * sum(map(len, CHOSEN.values())))
    points: Points = []
    for row in chosen:
        for client in clients.select(CHOSEN[row.name]):
            least, most = MESSAGES[row.kind]
            few = _run(bench, progress, perf, row, client, least)
            many = _run(bench, progress, perf, row, client, most)
            each = {
                # Of next to nothing, more in the short run than in the long one is noise.
                name: max(0.0, many[event] - few[event]) / (most - least)
                for event, name in EVENTS.items()
            }
            each["user"] /= 1000
            each["system"] /= 1000
            points.append({"row": row.name, "client": client.name, **each})
    return points


def _counts(perf: str) -> bool:
    """Whether this user may, on this kernel."""
    # Not the times: of a program as short as this one they are "not counted".
    tried = [perf, "stat", "-x,", "-e", "raw_syscalls:sys_enter", "true"]
    ran = subprocess.run(tried, capture_output=True, text=True, check=False)
    return ran.returncode == 0 and bool(_parse(ran.stderr))


def _run(
    bench: Bench, progress: Progress, perf: str, row: Row, client: Client, messages: int
) -> Mapping[str, float]:
    progress.begin(f"kernel: {row.name} {client.name}, {messages} messages")
    with TemporaryDirectory() as folder:
        out = Path(folder) / "counts"
        tool = [perf, "stat", "-x,", "-o", str(out), "-e", ",".join(EVENTS), "--"]
        topic = f"kernel-{row.name}-{client.name}-{messages}"
        run_under(tool, bench, replace(row, warm=row.batch), client, messages, topic)
        return _parse(out.read_text())


def _parse(text: str) -> dict[str, float]:
    """perf's ``value,unit,event,...`` lines; a value that it could not count is no number."""
    found = {}
    for line in text.splitlines():
        fields = line.split(",")
        if len(fields) > 2 and fields[2] in EVENTS and not fields[0].startswith("<"):
            found[fields[2]] = float(fields[0])
    return found


def table(points: Points) -> str:
    return "".join(
        f"  {p['row']:<21} {p['client']:<13}"
        + ", ".join(f"{p[name]:7.3f} {title}" for name, title in TITLES.items())
        + "\n"
        for p in points
    )
