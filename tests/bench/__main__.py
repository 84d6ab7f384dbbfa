"""``python -m tests.bench``: the command line. README.rst in this folder explains the table."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.bench import clients as client_list
from tests.bench import machine, report
from tests.bench import progress as progress_kinds
from tests.bench import rows as row_list
from tests.bench.cells import Bench, Plan
from tests.bench.server import Server, find

QUICK = {"rounds": 3, "seconds": 0.25}
FULL = {"rounds": 7, "seconds": 1.5}


def names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measure gnsqsync beside its peers and a raw-socket floor on a real nsqd.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer, shorter rounds: under 2 min")
    parser.add_argument("--rounds", type=int, help="how often each cell is measured")
    parser.add_argument("--seconds", type=float, help="about how long each cell is measured")
    parser.add_argument("--messages", type=int, help="messages a cell, instead of --seconds")
    parser.add_argument(
        "--only", type=names, default=[], help="rows or beginnings of rows: consume,publish-1"
    )
    parser.add_argument(
        "--clients", type=names, default=[], help="ours,floor,floor-real,gnsq,pynsq"
    )
    parser.add_argument("--runtime", choices=("threads", "gevent"), default="threads")
    parser.add_argument(
        "--pin",
        action=argparse.BooleanOptionalAction,
        default=bool(machine.usable_cpus()),
        help="client and nsqd on one CPU: right for ratios; without it throughput is natural",
    )
    parser.add_argument("--cpu", type=int, help="which CPU --pin means; the last one by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--nsqd", metavar="PROGRAM", help="instead of the one tests/support finds")
    parser.add_argument("--cell-timeout", type=float, default=60.0, help="seconds; default 60")
    chosen = parser.parse_args(argv)
    form = QUICK if chosen.quick else FULL
    chosen.rounds = form["rounds"] if chosen.rounds is None else chosen.rounds
    chosen.seconds = form["seconds"] if chosen.seconds is None else chosen.seconds
    if chosen.rounds < 1 or chosen.seconds <= 0 or (chosen.messages or 1) < 1:
        parser.error("--rounds, --seconds and --messages must be positive")
    cpus = machine.usable_cpus()
    if chosen.pin and not cpus:
        parser.error("--pin needs a system with CPU affinity")
    if chosen.cpu is not None and chosen.cpu not in cpus:
        parser.error(f"--cpu {chosen.cpu} is not among the usable CPUs {cpus}")
    try:
        chosen.only = row_list.select(chosen.only)
        chosen.clients = client_list.select(chosen.clients)
    except ValueError as error:
        parser.error(str(error))
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 when a cell or a client failed, 2 when nothing could be measured."""
    chosen = arguments(argv)
    plan = Plan(
        rounds=chosen.rounds,
        seconds=chosen.seconds,
        messages=chosen.messages,
        cpu=(chosen.cpu if chosen.cpu is not None else machine.usable_cpus()[-1])
        if chosen.pin
        else None,
        cell_timeout=chosen.cell_timeout,
        runtime=chosen.runtime,
    )
    with progress_kinds.choose() as progress:
        pythons: dict[str, str] = {}
        for client in chosen.clients:
            try:
                pythons[client.name] = client_list.python_of(client, progress.say)
            except client_list.Unavailable as error:
                progress.say(str(error))
        ready = [client for client in chosen.clients if client.name in pythons]
        try:
            program = find(chosen.nsqd)
        except FileNotFoundError as error:
            progress.say(f"no real nsqd: {error}")
            return 2
        before = machine.describe()
        with Server(program, plan.cpu) as server:
            before["nsqd"] = server.version
            bench = Bench(server, plan, pythons, progress)
            bench.run(chosen.only, ready)
        before["load_average_after"] = machine.describe()["load_average"]

    layout = "any CPU" if plan.cpu is None else f"client and nsqd on CPU {plan.cpu}"
    print(f"{before['cpu']}, {before['cores']} cores, {before['kernel']}, {before['python']}")
    print(f"{before['nsqd']}; {layout}; {plan.rounds} rounds; median (min..max)")
    print("load average {:.1f} before, {:.1f} after\n".format(
        before["load_average"][0], before["load_average_after"][0]))  # fmt: skip
    print(report.table(bench, chosen.only, chosen.clients))
    if chosen.json is not None:
        options = {
            "rounds": plan.rounds,
            "seconds": None if plan.messages else plan.seconds,
            "messages": plan.messages,
            "pinned_cpu": plan.cpu,
            "runtime": plan.runtime,
            "packages": {c.name: list(c.packages) for c in chosen.clients if c.packages},
        }
        whole = report.document(bench, chosen.only, before, options)
        chosen.json.write_text(json.dumps(whole, indent=1) + "\n")
    if not bench.samples:
        return 2
    return 1 if bench.failures or len(ready) < len(chosen.clients) else 0


if __name__ == "__main__":
    sys.exit(main())
