"""``python -m tests.bench.creep``: whether a message costs more than it did in ``costs.rst``.

Instructions a message, by valgrind, in the commit that changed costs.rst last and in this tree, in
one run. The exit status is 1 when a row has grown by more than 3 %: mend it, or add a line to
costs.rst that says why; later trees are then compared with that commit. 2: nothing was measured.

Only rows whose counts repeat within 1 %: one message or one MPUB at a time. How many messages come
in a chunk varies from run to run, and with it what each of them costs.
"""

from __future__ import annotations

import argparse
import compileall
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.bench import clients, rows
from tests.bench import progress as progress_kinds
from tests.bench.cells import Bench, Layout, Plan
from tests.bench.instructions import a_message
from tests.bench.server import Server, find
from tests.support.realnsq import Unavailable
from tests.support.servers import ROOT

COSTS = "tests/bench/costs.rst"
MOST_GROWTH = 0.03
# Each with two lengths, in messages; what differs is counted.
ROWS = {"publish-1": (300, 2_300), "publish-many": (2_000, 42_000), "consume-1": (300, 2_300)}


def accepted() -> str:
    """The commit that changed COSTS last."""
    words = ["git", "log", "-1", "--format=%H", "--", COSTS]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if not found:
        raise Unavailable(f"no commit has {COSTS}")
    return found.strip()


def unpack(commit: str, folder: Path) -> None:
    """The package as it was in a commit."""
    words = ["git", "archive", commit, "gnsqsync"]
    packed = subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    # Or the first run there would count Python's compiler.
    for tree in (folder, ROOT):
        compileall.compile_dir(tree / "gnsqsync", quiet=2)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.creep", description=__doc__)
    parser.add_argument("--against", metavar="COMMIT", help=f"default: the last one of {COSTS}")
    parser.add_argument("--only", default="", help=f"rows: {','.join(ROWS)}")
    chosen = parser.parse_args(argv)
    names = chosen.only.split(",") if chosen.only else [*ROWS]
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        print("no valgrind on PATH", file=sys.stderr)
        return 2
    try:
        program = find(None)
        against = chosen.against or accepted()
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 2
    grown = []
    (ours,) = clients.select(["ours"])
    with (
        tempfile.TemporaryDirectory(prefix="gnsqsync-creep-") as folder,
        Server(program, None) as server_then,
        Server(program, None) as server_now,
        progress_kinds.choose() as progress,
        ThreadPoolExecutor() as pool,
    ):
        unpack(against, Path(folder))
        plan = Plan(1, 1, 1, 60.0)
        # The two trees run beside each other, as the count is the same on a busy machine: each
        # with an nsqd of its own, so that both have topics of the same names.
        sides = [
            (tree, Bench({"free": server}, [Layout("free", None)], plan, {}, progress))
            for tree, server in ((Path(folder), server_then), (ROOT, server_now))
        ]
        progress.total(len(names))
        print(f"instructions a message, {against[:12]} and now:")
        for row in rows.ROWS:
            if row.name not in names:
                continue
            row = replace(row, warm=row.batch)
            progress.begin(row.name)
            counting = [
                pool.submit(a_message, bench, row, ours, ROWS[row.name], valgrind, tree)
                for tree, bench in sides
            ]
            costs = [each.result() for each in counting]
            growth = costs[1] / costs[0] - 1
            print(
                f"  {row.name:<22} {costs[0]:>9,.0f} {costs[1]:>9,.0f}  {growth:+7.1%}", flush=True
            )
            if growth > MOST_GROWTH:
                grown.append(row.name)
    if grown:
        print(
            f"{', '.join(grown)}: more than {MOST_GROWTH:.0%} above; see {COSTS}", file=sys.stderr
        )
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
