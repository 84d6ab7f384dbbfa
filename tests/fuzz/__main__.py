"""``python -m tests.fuzz --minutes N``: every target in turn, each in a process of its own.

Needs atheris (``pip install -e '.[test,fuzz]'``), which goes by the coverage of gnsqsync.
Exit status 1 when something was found; its input lies in the folder that is printed. Without
atheris there is ``pytest tests/fuzz``: the committed corpus, and inputs made of it.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.targets import TARGETS


@dataclass
class Outcome:
    """What became of one target. ``coverage``: edges before and after."""

    name: str
    minutes: float
    executions: int = 0
    coverage: tuple[int, int] = (0, 0)
    new_inputs: int = 0
    findings: tuple[Path, ...] = ()
    failed: str = ""


def run_target(name: str, given: argparse.Namespace, seconds: int, folder: Path) -> Outcome:
    work = folder / "corpus" / name
    findings = folder / "findings"
    for path in (work, findings):
        path.mkdir(parents=True, exist_ok=True)
    before = len(list(work.iterdir()))
    log = folder / f"{name}.log"
    command = [sys.executable, "-m", "tests.fuzz.child", name]
    command += ["--seconds", str(seconds), "--seed", str(given.seed)]
    command += ["--memory", str(given.memory), "--timeout", str(given.timeout)]
    command += ["--work", str(work), "--findings", str(findings)]
    known = set(findings.iterdir())
    started = time.monotonic()
    with log.open("wb") as out:
        # The child ends by itself; this is for one that hangs where libFuzzer cannot see it.
        code = subprocess.run(
            command, stdout=out, stderr=out, timeout=seconds + 300, check=False
        ).returncode
    text = log.read_text("utf-8", "replace")
    outcome = Outcome(name, (time.monotonic() - started) / 60)
    executed = re.search(r"stat::number_of_executed_units:\s*(\d+)", text)
    counted = re.findall(r"^#(\d+)\s", text, re.MULTILINE)
    outcome.executions = int(executed[1]) if executed else int(counted[-1]) if counted else 0
    edges = [int(found) for found in re.findall(r" cov: (\d+)", text)]
    if edges:
        outcome.coverage = (edges[0], edges[-1])
    outcome.new_inputs = len(list(work.iterdir())) - before
    outcome.findings = tuple(sorted(set(findings.iterdir()) - known))
    if code != 0:
        outcome.failed = "\n".join(text.splitlines()[-40:])
    return outcome


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="for all targets together")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="repeatable")
    parser.add_argument("--seed", type=int, help="printed when it is not given")
    parser.add_argument("--list", action="store_true", help="say which targets there are, and end")
    parser.add_argument("--memory", type=int, default=2048, metavar="MIB", help="of each process")
    parser.add_argument("--timeout", type=int, default=60, metavar="S", help="for one input")
    parser.add_argument("--work", type=Path, help="where new inputs are kept for the next run")
    given = parser.parse_args(argv)
    if given.list:
        for name, target in TARGETS.items():
            print(f"{name:16} {target.about}")
        return 0
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed; pip install -e '.[test,fuzz]'", file=sys.stderr)
        return 2
    if given.seed is None:
        given.seed = random.randrange(1, 2**31)
    os.environ["PYTHONHASHSEED"] = "0"
    folder = given.work or Path(tempfile.mkdtemp(prefix="gnsqsync-fuzz-"))
    names = given.target or list(TARGETS)
    seconds = max(1, round(given.minutes * 60 / len(names)))
    print(f"seed {given.seed}, {seconds} s for each of {len(names)} targets, in {folder}")
    heading = ("target", "minutes", "executions", "edges", "new", "inputs", "findings")
    print("{:16} {:>7} {:>12} {:>7} {:>5} {:>7} {:>8}".format(*heading), flush=True)
    outcomes = []
    for name in names:
        outcome = run_target(name, given, seconds, folder)
        outcomes.append(outcome)
        first, last = outcome.coverage
        print(
            f"{name:16} {outcome.minutes:7.1f} {outcome.executions:12,} {last:7} {last - first:5}"
            f" {outcome.new_inputs:7} {len(outcome.findings):8}",
            flush=True,
        )
    print(
        f"{'together':16} {sum(o.minutes for o in outcomes):7.1f}"
        f" {sum(o.executions for o in outcomes):12,}"
    )
    for outcome in outcomes:
        if outcome.failed:
            print(f"\n{outcome.name}:\n{outcome.failed}")
        for path in outcome.findings:
            print(f"the input is in {path}")
    return 1 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
