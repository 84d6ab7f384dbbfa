"""Runs histories of the simulated cluster.

python -m tests.simulation --seeds 1000 --minutes 10    new histories
python -m tests.simulation --seed 4711                  one, with its log
python -m tests.simulation --seed race:4711             one of another world
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from tests.simulation import environment, faults


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description="Histories of a simulated cluster."
    )
    parser.add_argument("--seed", help="run this one history, and print its log")
    parser.add_argument("--picture", help="draw the history of --seed or --shrink to this SVG file")
    parser.add_argument("--shrink", help="make the history of this seed smaller")
    parser.add_argument("--day", type=int, help="a whole day, of this seed")
    parser.add_argument("--world", choices=["cluster", "race"], help="only of this kind")
    parser.add_argument("--explore", action="store_true", help="races that lead to new places")
    parser.add_argument(
        "--scenarios", nargs="*", metavar="FILE", help="run those of scenarios_FILE.py (all files)"
    )
    parser.add_argument("--known", action="store_true", help="run a history for each known fault")
    parser.add_argument(
        "--many", action="store_true", help="all known ones; scenarios at full size"
    )
    parser.add_argument("--stacks-at", type=float, help="show then (seconds) where each task is")
    parser.add_argument("--first", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--seeds", type=int, default=100, help="how many (100)")
    parser.add_argument("--minutes", type=float, default=60.0, help="for so long at most (60)")
    parser.add_argument("--fault", help="with this deliberate fault")
    parser.add_argument("--faults", action="store_true", help="with each deliberate fault")
    options = parser.parse_args(arguments)
    environment.restart_fixed()
    if options.faults:
        return _all_faults(options)
    environment.install(faults.FAULTS[options.fault].changes if options.fault else ())
    from tests.simulation import campaign

    if options.scenarios is not None:
        from tests.simulation import scenario

        return scenario.run_all(options.scenarios, options.many)
    if options.fault and options.seed is None and options.shrink is None:
        return campaign.hunt(campaign.names(options.first, options.seeds, options.world))
    if options.known:
        return campaign.run(campaign.known(options.many), options.minutes)
    if options.seed is not None:
        return campaign.replay(options.seed, options.stacks_at, options.picture)
    if options.shrink is not None:
        return campaign.shrink(options.shrink, options.picture)
    if options.day is not None:
        return campaign.day(options.day)
    if options.explore:
        return campaign.explore(options.first, options.seeds, options.minutes)
    names = campaign.names(options.first, options.seeds, options.world)
    return campaign.run(names, options.minutes)


def _all_faults(options: argparse.Namespace) -> int:
    """Each in a process of its own, as the code is changed when it is imported."""
    missed = 0
    for name, fault in faults.FAULTS.items():
        command = [sys.executable, "-m", "tests.simulation", "--fault", name]
        command += ["--first", str(options.first), "--seeds", str(options.seeds)]
        command += ["--world", options.world] if options.world else []
        done = subprocess.run(command, capture_output=True, text=True)
        found = done.stdout.strip().splitlines()[-1:] or [done.stderr[-500:]]
        print(f"{name} ({fault.about}): {found[0][:160]}", flush=True)
        missed += done.returncode != 0
    print(f"{len(faults.FAULTS)} faults, {missed} not seen")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
