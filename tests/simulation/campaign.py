"""Many histories, each in a process of its own that is forked when everything is imported."""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import resource
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from tests.simulation import environment
from tests.simulation.history import History, Result
from tests.simulation.picture import draw_history
from tests.simulation.plan import Plan, draw, draw_day

__all__ = ["day", "hunt", "known", "replay", "run", "run_plan", "shrink"]

# Seconds that a history may compute.
_MOST_SECONDS = 30


def run_plan(
    plan: Plan, stacks_at: float | None = None, most_seconds: int = _MOST_SECONDS
) -> Result:
    """Run it in a child process. ``stacks_at``: when (seconds) the log shows where each task is."""
    reading, writing = os.pipe()
    gc.collect()
    gc.freeze()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.close(reading)
        _limit(most_seconds)
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
        return Result(plan.seed, ended, "", 0.0, 0, 0, 0)
    result: Result = pickle.loads(data)
    return result


def _limit(seconds: int) -> None:
    """End this process, and say where it was, after so much computing."""
    used = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime)
    faulthandler.register(signal.SIGXCPU, chain=True)
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, used + seconds + 5))


def replay(seed: int, stacks_at: float | None, picture: str | None) -> int:
    """One history, with its log; ``picture``: a file to draw it to."""
    return _show(draw(seed), stacks_at, picture)


def _show(plan: Plan, stacks_at: float | None = None, picture: str | None = None) -> int:
    result = run_plan(plan, stacks_at)
    print(plan)
    print(result.log, end="")
    for text in result.violations:
        print(f"seed {plan.seed}: {text}")
    if picture is not None:
        title = f"seed {plan.seed}, {'threads' if plan.preempts else 'greenlets'}"
        Path(picture).write_text(draw_history(result.samples, result.marks, title))
    return 1 if result.violations else 0


def shrink(seed: int, picture: str | None) -> int:
    """Leave out what the failure does not need, and show what is left."""
    plan = draw(seed)
    if not run_plan(plan).violations:
        print(f"seed {seed} does not fail")
        return 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(plan):
            if run_plan(candidate).violations:
                plan, is_smaller = candidate, True
                break
    return _show(plan, None, picture)


def _smaller(plan: Plan) -> Iterator[Plan]:
    """The same with one thing less, or with less of it."""
    for part in ("faults", "readers", "writers"):
        for index in range(len(getattr(plan, part))):
            yield plan.without(part, index)
    for index, writer in enumerate(plan.writers):
        for less in (
            replace(writer, threads=max(1, writer.threads // 2)),
            replace(writer, messages=max(1, writer.messages // 2)),
            replace(writer, kinds=writer.kinds[:1]),
        ):
            if less != writer:
                yield plan.instead("writers", index, less)
    for index, reader in enumerate(plan.readers):
        less_busy = replace(reader, changes=(), fails=0.0, slow=0.0, detaches=0.0, forgets=0.0)
        if less_busy != reader:
            yield plan.instead("readers", index, less_busy)
    if plan.seconds > 5:
        yield replace(plan, seconds=plan.seconds / 2)


def day(seed: int) -> int:
    """24 hours with a fault each half hour; how long they took."""
    began = environment.real_monotonic()
    result = run_plan(draw_day(seed), most_seconds=3600)
    took = environment.real_monotonic() - began
    for text in result.violations[:5]:
        print(f"day {seed}: {text}")
    print(
        f"{result.seconds / 3600:.1f} simulated hours, {result.published:,} publishes,"
        f" {result.handled:,} handled, {result.turns:,} turns, in {took:.0f} s"
    )
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
