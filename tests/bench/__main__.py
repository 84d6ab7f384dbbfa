"""``python -m tests.bench``: the command line. README.rst in this folder explains the table."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench import clients as client_list
from tests.bench import (
    counts,
    environments,
    instructions,
    kernel,
    machine,
    memory,
    pages,
    pictures,
    profiles,
    publishers,
    ramp,
    report,
    scale,
)
from tests.bench import progress as progress_kinds
from tests.bench import rows as row_list
from tests.bench.cells import Bench, Layout, Plan
from tests.bench.progress import Progress
from tests.bench.server import Server, find, server_version
from tests.bench.under import Unavailable

QUICK = {"rounds": 2, "seconds": 0.15}
FULL = {"rounds": 5, "seconds": 0.3}
DOCS = {"rounds": 3, "seconds": 0.25}


def names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measure gnsqsync beside its peers and a raw-socket floor on a real nsqd.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--quick", action="store_true", help="less of the table: under 2 min")
    what.add_argument("--ramp", action="store_true", help="latency and cost at rates in between")
    what.add_argument(
        "--scale", action="store_true", help="connections, topics, processes, sizes, handler times"
    )
    what.add_argument(
        "--publishers", action="store_true", help="2 to 256 threads or greenlets that publish"
    )
    what.add_argument(
        "--instructions", action="store_true", help="instructions a message, by valgrind"
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="where time and memory of ours go, by py-spy, perf and tracemalloc",
    )
    what.add_argument(
        "--docs", action="store_true", help="all of it, and the tables and pictures of the docs"
    )
    parser.add_argument("--rounds", type=int, help="how often each cell is measured")
    parser.add_argument("--seconds", type=float, help="about how long each cell is measured")
    parser.add_argument("--messages", type=int, help="messages a cell, instead of --seconds")
    parser.add_argument(
        "--only", type=names, default=[], help="rows or beginnings of rows: consume,publish-1"
    )
    parser.add_argument(
        "--clients", type=names, default=[], help="by name: ours,ours-gevent,floor,go-nsq"
    )
    parser.add_argument(
        "--pin",
        action=argparse.BooleanOptionalAction,
        help="client and nsqd on one CPU: right for ratios; without it throughput is natural;"
        " both when neither is said, but for --quick, which pins",
    )
    parser.add_argument("--cpu", type=int, help="which CPU pinned means; the last one by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw PNG files there")
    parser.add_argument(
        "--folder",
        type=Path,
        default=client_list.REPOSITORY / "docs" / "guides" / "performance",
        help="where --docs writes; that of the docs by default",
    )
    parser.add_argument("--nsqd", metavar="PROGRAM", help="instead of the one tests/support finds")
    parser.add_argument("--cell-timeout", type=float, default=60.0, help="seconds; default 60")
    chosen = parser.parse_args(argv)
    form = QUICK if chosen.quick else DOCS if chosen.docs else FULL
    chosen.rounds = form["rounds"] if chosen.rounds is None else chosen.rounds
    chosen.seconds = form["seconds"] if chosen.seconds is None else chosen.seconds
    if chosen.rounds < 1 or chosen.seconds <= 0 or (chosen.messages or 1) < 1:
        parser.error("--rounds, --seconds and --messages must be positive")
    cpus = machine.usable_cpus()
    if chosen.pin and not cpus:
        parser.error("--pin needs a system with CPU affinity")
    if chosen.cpu is not None and chosen.cpu not in cpus:
        parser.error(f"--cpu {chosen.cpu} is not among the usable CPUs {cpus}")
    chosen.layouts = []
    if cpus and chosen.pin is not False:
        chosen.layouts.append(Layout("pinned", cpus[-1] if chosen.cpu is None else chosen.cpu))
    if not cpus or chosen.pin is False or (chosen.pin is None and not chosen.quick):
        chosen.layouts.append(Layout("free", None))
    try:
        chosen.only = row_list.select(chosen.only, chosen.quick)
        chosen.clients = client_list.select(chosen.clients, chosen.quick)
    except ValueError as error:
        parser.error(str(error))
    return chosen


def others(chosen: argparse.Namespace) -> bool:
    """Whether something else than the table is asked for."""
    return bool(
        chosen.ramp or chosen.scale or chosen.publishers or chosen.instructions or chosen.profile
    )


def commands(chosen: argparse.Namespace, progress: Progress) -> dict[str, list[str]]:
    """How each client is started, by name; those that cannot be made ready are told."""
    ready: dict[str, list[str]] = {}
    wanted = chosen.clients
    if chosen.docs or others(chosen):
        wanted = dict.fromkeys([*wanted, *client_list.select(["ours", "ours-gevent", "floor"])])
        if chosen.ramp:
            wanted |= dict.fromkeys(client_list.select(["go-nsq"]))
        elif not chosen.docs:
            wanted = [client for client in wanted if not client.packages and not client.go]
    for client in wanted:
        try:
            ready[client.name] = environments.command_of(client, progress.say)
        except environments.Unavailable as error:
            progress.say(str(error))
    return ready


def measure(
    chosen: argparse.Namespace,
    bench: Bench,
    program: Path,
    ready: dict[str, list[str]],
    progress: Progress,
) -> tuple[dict[str, Any], str]:
    """The parts that were asked for, by name, and what is to be printed of them."""
    found: dict[str, Any] = {}
    text = []
    if chosen.docs or not others(chosen):
        bench.run(chosen.only, [c for c in chosen.clients if c.name in ready])
        found |= report.document(bench, chosen.only)
        text.append(report.table(bench, chosen.only, chosen.clients))
    if chosen.docs:
        found["counts"] = counts.run(bench, progress)
        text += ["Sends and recvs of ours:", counts.table(found["counts"])]
    if chosen.docs or chosen.ramp:
        found["ramp"] = ramp.run(bench, progress)
        text += ["Rates, with the settings of consume-2500-workers:", ramp.table(found["ramp"])]
    if chosen.docs or chosen.scale:
        found["scale"] = scale.run(bench, program, progress)
        text += ["More of everything:", scale.table(found["scale"])]
    if chosen.docs or chosen.publishers:
        found["publishers"] = publishers.run(bench, progress)
        text += ["Many that publish with one Writer:", publishers.table(found["publishers"])]
    if chosen.docs or chosen.instructions:
        found["instructions"] = instructions.run(bench, progress)
        text += ["Instructions:", instructions.table(found["instructions"])]
    if chosen.docs or chosen.profile:
        found["profile"] = profiles.run(bench, progress)
        text += ["Where the time goes:", profiles.table(found["profile"])]
        found["kernel"] = kernel.run(bench, progress)
        text += ["What of it is the kernel's:", kernel.table(found["kernel"])]
        found["memory"] = memory.run(bench, progress)
        text += ["What the memory is made of:", memory.table(found["memory"])]
    return found, "\n".join(text)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 when a cell or a client failed, 2 when nothing could be measured.

    That a peer hangs is a finding, and no failure.
    """
    chosen = arguments(argv)
    with progress_kinds.choose() as progress:
        try:
            program = find(chosen.nsqd)
        except FileNotFoundError as error:
            progress.say(f"no real nsqd: {error}")
            return 2
        try:
            if chosen.docs or chosen.profile:
                # Before a quarter of an hour of other measurements.
                profiles.py_spy()
        except Unavailable as error:
            progress.say(str(error))
            return 2
        described = machine.describe()
        described["nsqd"] = server_version(program)
        plan = Plan(chosen.rounds, chosen.seconds, chosen.messages, chosen.cell_timeout)
        ready = commands(chosen, progress)
        with contextlib.ExitStack() as stack:
            servers = {
                layout.name: stack.enter_context(Server(program, layout.cpu))
                for layout in chosen.layouts
            }
            bench = Bench(servers, chosen.layouts, plan, ready, progress)
            try:
                found, text = measure(chosen, bench, program, ready, progress)
            except Unavailable as error:
                progress.say(str(error))
                return 2
        described["load_average_after"] = machine.describe()["load_average"]

    print(machine.title(described))
    print(f"{chosen.rounds} rounds; median (min..max)")
    print("load average {:.1f} before, {:.1f} after\n".format(
        described["load_average"][0], described["load_average_after"][0]))  # fmt: skip
    print(text)
    options = {
        "rounds": chosen.rounds,
        "seconds": None if chosen.messages else chosen.seconds,
        "messages": chosen.messages,
        "packages": {c.name: list(c.packages) for c in chosen.clients if c.packages},
    }
    whole = {"format": 2, "machine": described, "options": options, **found}
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(whole, indent=1) + "\n")
    if chosen.pictures is not None:
        pictures.draw(whole, chosen.pictures)
    if chosen.docs:
        pages.write(whole, chosen.folder)
        pictures.draw(whole, chosen.folder)
    if "samples" in whole and not bench.samples:
        return 2
    unexpected = [f for f in whole.get("failures", ()) if f["state"] != "hangs"]
    return 1 if unexpected or len(ready) < len(chosen.clients) else 0


if __name__ == "__main__":
    sys.exit(main())
