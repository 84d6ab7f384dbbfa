"""Many histories, each in a process of its own that is forked when everything is imported."""

from __future__ import annotations

import faulthandler
import gc
import os
import pickle
import random
import resource
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from tests.simulation import environment
from tests.simulation.history import History, Result
from tests.simulation.picture import draw_history
from tests.simulation.plan import Plan, draw

__all__ = ["day", "hunt", "known", "replay", "run", "run_plan", "shrink"]

# Seconds that a history may compute.
_MOST_SECONDS = 90


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
        return Result(plan.name, ended, "", 0.0, 0, 0, 0)
    result: Result = pickle.loads(data)
    return result


def _limit(seconds: int) -> None:
    """End this process, and say where it was, after so much computing."""
    used = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime)
    faulthandler.register(signal.SIGXCPU, chain=True)
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, used + seconds + 5))


def replay(name: str, stacks_at: float | None, picture: str | None) -> int:
    """One history, with its log; ``picture``: a file to draw it to."""
    return _show(draw(name), stacks_at, picture)


def _show(plan: Plan, stacks_at: float | None = None, picture: str | None = None) -> int:
    result = run_plan(plan, stacks_at)
    print(plan)
    print(result.log, end="")
    for text in result.violations:
        print(f"seed {plan.name}: {text}")
    if picture is not None:
        title = f"seed {plan.name}, {'threads' if plan.preempts else 'greenlets'}"
        Path(picture).write_text(draw_history(result.samples, result.marks, title))
    return 1 if result.violations else 0


def shrink(name: str, picture: str | None) -> int:
    """Leave out what the failure does not need, and show what is left."""
    plan = draw(name)
    if not run_plan(plan).violations:
        print(f"seed {name} does not fail")
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
    result = run_plan(draw(f"day:{seed}"), most_seconds=3600)
    took = environment.real_monotonic() - began
    for text in result.violations[:5]:
        print(f"day {seed}: {text}")
    print(
        f"{result.seconds / 3600:.1f} simulated hours, {result.published:,} publishes,"
        f" {result.handled:,} handled, {result.turns:,} turns, in {took:.0f} s"
    )
    return 1 if result.violations else 0


def names(first: int, count: int, world: str | None) -> Iterator[str]:
    """So many histories, of one world, or of both that are short by turns."""
    if world is not None:
        yield from (
            f"{world}:{seed}".removeprefix("cluster:") for seed in range(first, first + count)
        )
        return
    for number in range(count):
        seed = first + number // 2
        yield f"race:{seed}" if number % 2 else f"{seed}"


def hunt(histories: Iterable[str]) -> int:
    """Until the first history that fails; says how many that took. 1 when none did."""
    began = environment.real_monotonic()
    number = 0
    for number, name in enumerate(histories, 1):
        result = run_plan(draw(name))
        if result.violations:
            took = environment.real_monotonic() - began
            what = result.violations[0].splitlines()[0]
            print(f"history {number:,} (seed {name}), {took:.1f} s: {what}")
            return 0
    print(f"not seen in {number:,} histories")
    return 1


def known(many: bool) -> list[str]:
    """Return the seeds of ``seeds.txt``: ``many`` all, else the first of each fault."""
    lines = (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    found = [line.partition(" ")[::2] for line in lines if not line.startswith("#")]
    if many:
        return [seed for seed, _ in found]
    first: dict[str, str] = {}
    for seed, fault in found:
        first.setdefault(fault, seed)
    return list(first.values())


class _Sum:
    """What many histories were, in all."""

    def __init__(self) -> None:
        self.began = environment.real_monotonic()
        self.failed: list[str] = []
        self.pairs: set[tuple[int, int]] = set()
        self._histories = self._published = self._handled = self._turns = 0
        self._seconds = 0.0

    def add(self, result: Result) -> bool:
        """Whether it has reached a pair of places that none before has."""
        self._histories += 1
        self._published += result.published
        self._handled += result.handled
        self._seconds += result.seconds
        self._turns += result.turns
        if result.violations:
            self.failed.append(result.name)
            print(f"seed {result.name}: {result.violations[0][:600]}", flush=True)
        is_new = not result.pairs <= self.pairs
        self.pairs |= result.pairs
        return is_new

    @property
    def took(self) -> float:
        return environment.real_monotonic() - self.began

    def tell(self) -> int:
        """1 when one failed."""
        print(
            f"{self._histories:,} histories, {self._seconds / 3600:.1f} simulated hours,"
            f" {self._published:,} publishes, {self._handled:,} handled, {self._turns:,} turns,"
            f" {len(self.pairs):,} pairs of places, {len(self.failed)} failed, in {self.took:.0f} s"
        )
        return 1 if self.failed else 0


def run(histories: Iterable[str], minutes: float) -> int:
    """Each of them, as far as the time goes; tells those that fail. 1 when one did."""
    total = _Sum()
    for name in histories:
        if total.took > minutes * 60:
            break
        total.add(run_plan(draw(name)))
    return total.tell()


def explore(first: int, count: int, minutes: float) -> int:
    """Races that reach new pairs of places are kept, and run again with another chance.

    A pair: where a thread was interrupted, and where the one that ran instead went on.
    """
    rng = random.Random(first)
    total = _Sum()
    kept: list[str] = []
    seed = first
    for number in range(count):
        if total.took > minutes * 60:
            break
        if kept and rng.random() < 0.5:
            name = f"{rng.choice(kept)}+{number}"
        else:
            name = f"race:{seed}"
            seed += 1
        if total.add(run_plan(draw(name))):
            kept.append(name.partition("+")[0])
    print(f"{len(kept):,} of them reached pairs that none before had")
    return total.tell()
