"""Many histories, each in a process of its own that is forked when everything is imported."""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.simulation import environment
from tests.simulation.history import History, Result
from tests.simulation.plan import Plan, draw

__all__ = ["hunt", "known", "replay", "run", "run_plan"]

# Real seconds that a history may take.
_MOST_SECONDS = 20


def run_plan(plan: Plan, stacks_at: float | None = None) -> Result:
    """Run it in a child process. ``stacks_at``: when (seconds) the log shows where each task is."""
    reading, writing = os.pipe()
    gc.collect()
    gc.freeze()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.close(reading)
        faulthandler.dump_traceback_later(_MOST_SECONDS, exit=True)
        try:
            result = History(plan, stacks_at).run()
            with os.fdopen(writing, "wb") as file:
                pickle.dump(result, file)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        data = file.read()
    _, status = os.waitpid(child, 0)
    if not data:
        ended = [f"the process ended with {status}"]
        return Result(plan.seed, ended, "", 0.0, 0, 0, 0, frozenset())
    result: Result = pickle.loads(data)
    return result


def replay(seed: int, stacks_at: float | None) -> int:
    plan = draw(seed)
    result = run_plan(plan, stacks_at)
    print(plan)
    print(result.log, end="")
    for text in result.violations:
        print(f"seed {seed}: {text}")
    return 1 if result.violations else 0


def hunt(first: int, count: int) -> int:
    """Until the first history that fails; says how many that took. 1 when none did."""
    began = environment.real_monotonic()
    for number, seed in enumerate(range(first, first + count), 1):
        result = run_plan(draw(seed))
        if result.violations:
            took = environment.real_monotonic() - began
            what = result.violations[0].splitlines()[0]
            print(f"history {number} (seed {seed}), {took:.1f} s: {what}")
            return 0
    print(f"not seen in {count:,} histories")
    return 1


def known() -> list[int]:
    """The seeds of ``seeds.txt``."""
    lines = (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    return [int(line.split()[0]) for line in lines if not line.startswith("#")]


def run(seeds: Iterable[int], minutes: float) -> int:
    """Each of them, as far as the time goes; tells those that fail. 1 when one did."""
    began = environment.real_monotonic()
    failed: list[int] = []
    histories = published = handled = turns = 0
    seconds = 0.0
    for seed in seeds:
        if environment.real_monotonic() > began + minutes * 60:
            break
        result = run_plan(draw(seed))
        histories += 1
        published += result.published
        handled += result.handled
        seconds += result.seconds
        turns += result.turns
        if result.violations:
            failed.append(seed)
            print(f"seed {seed}: {result.violations[0][:600]}", flush=True)
    took = environment.real_monotonic() - began
    print(
        f"{histories:,} histories, {seconds / 3600:.1f} simulated hours, {published:,} publishes,"
        f" {handled:,} handled, {turns:,} turns, {len(failed)} failed, in {took:.0f} s"
    )
    return 1 if failed else 0
