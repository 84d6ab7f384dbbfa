"""Figures of the backoff: both rules in the same troubles, in virtual time.

``python -m tests.support.pause_figures`` prints the table. Knows ``policy`` alone: one message is
in flight at a time, as in a Reader with the defaults, and an nsqd is a queue with delays.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gnsqsync.policy.backoff import Backoff, Phase, Rule
from gnsqsync.policy.requeue import requeue_delay

__all__ = ["TROUBLES", "Run", "Trouble", "lines", "main", "run"]

# Messages a second, where a trouble does not say otherwise.
RATE: Final = 20.0
# Defaults of a Reader.
_REQUEUE_DELAY: Final = 90.0
_MAX_REQUEUE_DELAY: Final = 900.0
_MAX_ATTEMPTS: Final = 5
# Seconds of a call of the handler.
_WORK: Final = 0.001


class Sent(NamedTuple):
    """A published message. ``at``: seconds. ``is_poison``: it fails for ever."""

    at: float
    is_poison: bool = False


class Call(NamedTuple):
    """A call of the handler that ended ``at`` (seconds)."""

    at: float
    number: int
    failed: bool


@dataclass
class Run:
    """The calls, the pauses and the end of one run."""

    sent: Sequence[Sent]
    seconds: float
    calls: list[Call] = field(default_factory=list)
    # Begin and seconds of each pause.
    pauses: list[tuple[float, float]] = field(default_factory=list)

    def failures(self, begin: float = 0.0, end: float = float("inf")) -> int:
        """Return the number of failed calls in this time."""
        return sum(call.failed and begin <= call.at < end for call in self.calls)

    def successes(self, begin: float = 0.0, end: float = float("inf")) -> int:
        """Return the number of handled messages in this time."""
        return sum(not call.failed and begin <= call.at < end for call in self.calls)

    @property
    def longest_pause(self) -> float:
        """Return the seconds of the longest pause; 0 without one."""
        return max((seconds for _, seconds in self.pauses), default=0.0)

    @property
    def longest_stop(self) -> float:
        """Return the longest time without a handled message, in seconds."""
        moments = [0.0, *(call.at for call in self.calls if not call.failed), self.seconds]
        return max(after - before for before, after in itertools.pairwise(moments))

    def waits(self) -> list[float]:
        """Return the sorted waits of the healthy messages; to the end of the run at least."""
        done = {call.number: call.at for call in self.calls if not call.failed}
        return sorted(
            done.get(number, self.seconds) - message.at
            for number, message in enumerate(self.sent)
            if not message.is_poison
        )

    def wait(self, share: float) -> float:
        """Return this percentile of the waits, in seconds."""
        waits = self.waits()
        return waits[min(len(waits) - 1, int(len(waits) * share))]

    def most_calls_between_pauses(self) -> int:
        """Return the largest number of calls between the end of a pause and the next pause."""
        ends = [begin + seconds for begin, seconds in self.pauses]
        begins = [begin for begin, _ in self.pauses[1:]]
        return max(
            (
                sum(end <= call.at <= begin for call in self.calls)
                for end, begin in zip(ends, begins, strict=False)
            ),
            default=0,
        )

    def back_after(self, end: float) -> float:
        """Return the seconds from ``end`` to the end of the last pause: the full rate is back."""
        return (
            max(0.0, *(at + seconds - end for at, seconds in self.pauses)) if self.pauses else 0.0
        )


@dataclass(frozen=True)
class Trouble:
    """A way in which messages fail. ``fails``: by message, moment and chance."""

    name: str
    seconds: float
    sent: Callable[[], Iterable[Sent]]
    fails: Callable[[Sent, float, random.Random], bool]
    # The trouble ends then, in seconds; None: it does not.
    end: float | None = None
    requeue_delay: float = _REQUEUE_DELAY


def run(trouble: Trouble, rule: Rule, seed: int = 1) -> Run:
    """Play a trouble with a rule of the backoff."""
    rng = random.Random(f"{trouble.name} {seed}")
    sent = sorted(trouble.sent())
    found = Run(sent, trouble.seconds)
    backoff = Backoff(rule=rule, rng=random.Random(seed))
    ready: deque[int] = deque()
    tries = [0] * len(sent)
    # Moments at which messages come: first all published ones, later the requeued ones.
    coming = [(message.at, number) for number, message in enumerate(sent)]
    now = 0.0
    while now < trouble.seconds:
        while coming and coming[0][0] <= now:
            ready.append(heapq.heappop(coming)[1])
        at = backoff.next_at
        if at is not None and at <= now:
            backoff.tick(at)
        elif backoff.phase is Phase.BLOCKED or not ready:
            moments = [coming[0][0]] if coming else []
            now = min([trouble.seconds, *moments, *([] if at is None else [at])])
        else:
            number = ready.popleft()
            now += _WORK
            failed = trouble.fails(sent[number], now, rng)
            found.calls.append(Call(now, number, failed))
            paused = backoff.phase is Phase.BLOCKED
            if not failed:
                backoff.evidence.successes += 1
                backoff.succeeded(1, now)
            else:
                tries[number] += 1
                backoff.failed(number, tries[number], now)
                if tries[number] < _MAX_ATTEMPTS:
                    delay = requeue_delay(
                        b"%016x" % number, tries[number], trouble.requeue_delay, _MAX_REQUEUE_DELAY
                    )
                    heapq.heappush(coming, (now + delay, number))
            if backoff.phase is Phase.BLOCKED and not paused:
                assert backoff.resume_at is not None
                found.pauses.append((now, backoff.resume_at - now))
    return found


def _steady(seconds: float, rate: float = RATE, poison: float = 0.0) -> list[Sent]:
    rng = random.Random(f"poison {poison}")
    return [Sent(n / rate, rng.random() < poison) for n in range(int(seconds * rate))]


def _burst(count: int, seconds: float, rate: float = RATE) -> list[Sent]:
    return [Sent(5.0, True)] * count + _steady(seconds, rate)


def _is_poison(message: Sent, now: float, rng: random.Random) -> bool:
    return message.is_poison


def _flaps(period: float) -> Callable[[Sent, float, random.Random], bool]:
    return lambda message, now, rng: now % (2 * period) >= period


def _by_chance(share: float) -> Callable[[Sent, float, random.Random], bool]:
    return lambda message, now, rng: rng.random() < share


_OUTAGE: Final = (30.0, 630.0)

TROUBLES: Final = {
    trouble.name: trouble
    for trouble in (
        Trouble("flapping, 5 s", 300, lambda: _steady(300), _flaps(5.0)),
        Trouble("flapping, 10 s", 300, lambda: _steady(300), _flaps(10.0)),
        Trouble("flapping, 30 s", 600, lambda: _steady(600), _flaps(30.0)),
        Trouble("half fails, a minute", 60, lambda: _steady(60), _by_chance(0.5)),
        Trouble("half fails, an hour", 3600, lambda: _steady(3600), _by_chance(0.5)),
        Trouble(
            "a message an hour fails", 8 * 3600,
            lambda: [Sent(3600.0 * n, True) for n in range(8)], _is_poison,
        ),
        Trouble(
            "outage of ten minutes", 700, lambda: _steady(700),
            lambda message, now, rng: _OUTAGE[0] <= now < _OUTAGE[1], _OUTAGE[1],
        ),
        Trouble("poison of 2 %", 600, lambda: _steady(600, poison=0.02), _is_poison),
        Trouble("poison of 20 %", 600, lambda: _steady(600, poison=0.2), _is_poison),
        Trouble(
            "poison of 20 %, after an outage", 1800, lambda: _steady(1800, poison=0.2),
            lambda message, now, rng: message.is_poison or 30 <= now < 90, 90.0,
        ),
        Trouble(
            "four in a row", 600,
            lambda: [Sent(0.0, True)] * 4 + [Sent(0.5 + n / RATE) for n in range(100)],
            _is_poison, requeue_delay=1.0,
        ),
        Trouble("burst of 10 poison messages", 300, lambda: _burst(10, 300), _is_poison),
        Trouble("burst of 20 poison messages", 300, lambda: _burst(20, 300), _is_poison),
        Trouble(
            "burst of 200 poison messages", 10 * 3600, lambda: _burst(200, 36_000, 1.0), _is_poison
        ),
    )
}  # fmt: skip


def lines(troubles: Iterable[Trouble]) -> list[list[str]]:
    """Return the table with its head: a line for each trouble and rule."""
    head = "trouble,rule,failed/min,failed/ok,ok,pauses,longest pause,stop,median,99 %,back after"
    found = [head.split(",")]
    for trouble in troubles:
        for rule in (Rule.EVERY_FAILURE, Rule.OUTAGES):
            one = run(trouble, rule)
            failed, handled = one.failures(), one.successes()
            found.append(
                [
                    trouble.name if rule is Rule.EVERY_FAILURE else "",
                    rule.name.lower(),
                    f"{60 * failed / trouble.seconds:.2f}",
                    f"{failed / handled:.2f}" if handled else "-",
                    f"{handled}",
                    f"{len(one.pauses)}",
                    f"{one.longest_pause:.1f}",
                    f"{one.longest_stop:.1f}",
                    f"{one.wait(0.5):.3f}" if one.waits() else "-",
                    f"{one.wait(0.99):.3f}" if one.waits() else "-",
                    "-" if trouble.end is None else f"{one.back_after(trouble.end):.1f}",
                ]
            )
    return found


def main() -> None:
    """Print the table; times are seconds, and waits those of healthy messages."""
    table = lines(TROUBLES.values())
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))


if __name__ == "__main__":
    main()
