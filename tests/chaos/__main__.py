"""``python -m tests.chaos``: publish and consume under faults, without a pause, then count.

Prints its seed and a table; the exit status is 1 when a message is lost, a duplicate unexplained,
or a thread, greenlet or socket left behind, and 2 when it cannot run.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence

from tests.bench import progress as progress_kinds
from tests.bench.progress import Progress
from tests.chaos import accounts, report, soak
from tests.chaos.accounts import Account
from tests.chaos.field import Plan, Result, run, unavailable
from tests.chaos.mutations import MUTATIONS
from tests.chaos.processes import WORLDS
from tests.chaos.scenarios import SCENARIOS, mixed
from tests.support import realnsq

# How many scenarios one cluster and its clients go through before all of it is counted.
SCENARIOS_EACH = 6


def plans(seed: int, minutes: float, worlds: Sequence[str], progress: Progress) -> Iterator[Plan]:
    """Random schedules, each with a cluster of its own, until the time is over."""
    chance = random.Random(seed)
    deadline = time.monotonic() + minutes * 60
    number = 0
    cannot = {needs: unavailable(needs) for needs in ("", "lies", "spaces")}
    for needs, reason in cannot.items():
        if reason:
            progress.say(f"no {needs} here: {reason}")
    while time.monotonic() < deadline:
        number += 1
        needs = chance.choice([needs for needs in ("", "", "lies", "spaces") if not cannot[needs]])
        fitting = [s.name for s in SCENARIOS.values() if s.needs in ("", needs)]
        if needs:
            # There is no real nsqlookupd in these clusters.
            fitting.remove("lookupds-vanish")
        own = [name for name in fitting if SCENARIOS[name].needs]
        names = own + chance.sample([n for n in fitting if n not in own], SCENARIOS_EACH - len(own))
        chance.shuffle(names)
        kills = any(SCENARIOS[name].kills for name in names)
        progress.say(f"run {number}: {', '.join(names)}")
        yield Plan(
            f"run {number}", f"{seed}:{number}", worlds, mixed(names), needs, kills, short=False
        )


def chosen_plans(chosen: argparse.Namespace, worlds: Sequence[str]) -> Iterator[Plan]:
    """The named scenarios, once each."""
    for name in chosen.scenario:
        found = SCENARIOS[name]
        yield Plan(
            name, f"{chosen.seed}:{name}", worlds, found.act, found.needs, found.kills,
            short=not chosen.long, mutation=chosen.mutation,
            patience=15.0 if chosen.mutation else 60.0,
        )  # fmt: skip


def sums(results: Sequence[Result], worlds: Sequence[str]) -> list[Account]:
    return [
        accounts.total(world, [a for r in results for a in r.accounts if a.name == world])
        for world in worlds
    ]


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description="Publish and consume under faults, on 3 real nsqds, then count.",
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="how long; 1 by default")
    parser.add_argument("--seed", type=int, help="of the schedule; a new one by default")
    parser.add_argument("--world", choices=(*WORLDS, "both"), default="both")
    parser.add_argument(
        "--scenario", action="append", choices=sorted(SCENARIOS), metavar="NAME",
        help="only this one, once, in its short form; may be repeated",
    )  # fmt: skip
    parser.add_argument("--long", action="store_true", help="the long form of --scenario")
    parser.add_argument(
        "--mutation", choices=sorted(MUTATIONS), help="with a deliberate bug in the clients"
    )
    parser.add_argument("--list", action="store_true", help="what there is, and stop")
    parser.add_argument(
        "--soak", type=int, metavar="MESSAGES",
        help="instead: so many messages through one Reader and one Writer; memory must be flat",
    )  # fmt: skip
    chosen = parser.parse_args(argv)
    if chosen.seed is None:
        chosen.seed = random.SystemRandom().randrange(1 << 32)
    if chosen.mutation and not chosen.scenario:
        parser.error("--mutation goes with --scenario")
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    chosen = arguments(argv)
    if chosen.list:
        for found in SCENARIOS.values():
            print(f"{found.name:<16} {found.about}")
        return 0
    try:
        realnsq.find_or_build()
    except realnsq.Unavailable as error:
        print(error, file=sys.stderr)
        return 2
    # So that servers and clients end with this process, as they do after Ctrl-C.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    worlds = WORLDS if chosen.world == "both" else (chosen.world,)
    print(f"seed {chosen.seed}", flush=True)
    if chosen.soak:
        return soak.main(chosen.soak, chosen.seed, worlds)
    results = []
    with progress_kinds.choose() as progress:
        if chosen.scenario:
            todo = chosen_plans(chosen, worlds)
        else:
            todo = plans(chosen.seed, chosen.minutes, worlds, progress)
        for plan in todo:
            reason = unavailable(plan.needs)
            if reason:
                print(f"{plan.name} is left out: {reason}")
                continue
            results.append(run(plan))
    report.show(results, sums(results, worlds))
    return 0 if results and all(result.is_right for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
