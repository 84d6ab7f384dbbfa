"""The accounting: what was promised of each message against what happened to it.

Reads journals and the record of faults; starts nothing. Every acknowledged publish was handled,
every handled message was published, and each repetition has a cause that is on record.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos import journal

# The causes of a repetition.
KILLED = "nsqd killed"
REQUEUED = "requeued"
UNANSWERED = "never answered"
TIMED_OUT = "timed out"
CONNECTION = "connection lost"
UNKNOWN = "outcome unknown"
CAUSES = (KILLED, REQUEUED, UNANSWERED, TIMED_OUT, CONNECTION, UNKNOWN)

OK, NOT_KNOWN, NOT_SENT, REFUSED, CLOSED = "ok", "unknown", "not sent", "refused", "closed"
# An MPUB that was refused: a full disk may have left a part of it
# (docs/protocol/publishing#publish).
IN_PART = "refused in part"

# An answer that was given so shortly before a loss may still have been in the client's hands: the
# sweep sends it within 0.1 s, on a machine that has time.
_UNSENT_SECONDS = 1.0
# How long after a fault began its consequences are seen: two silent heartbeats, and some leisure.
_AFTERMATH = 6.0
_SHOWN = 5


class Fault(NamedTuple):
    """What was done to an nsqd, from when to when. ``nsqd``: its number, None for all of them."""

    kind: str
    nsqd: int | None
    began: float
    ended: float

    def concerns(self, nsqd: int) -> bool:
        return self.nsqd is None or self.nsqd == nsqd


class Facts(NamedTuple):
    """What the journals are judged by. ``nsqds``: the number of each address that clients use."""

    nsqds: dict[str, int]
    faults: Sequence[Fault]
    msg_timeout: float


@dataclass
class Call:
    """One call of a handler."""

    at: float
    nsqd: int
    id: str
    deadline: float
    returned: float | None = None
    how: str = ""


@dataclass
class Tally:
    """What became of one number."""

    outcomes: Counter[str] = field(default_factory=Counter)
    # Attempts, and when the first one began. Those of a process that was killed have no outcome.
    begun: int = 0
    began: float = math.inf
    # The Writer may have sent it again by itself.
    retried: bool = False
    calls: list[Call] = field(default_factory=list)

    @property
    def copies_allowed(self) -> int:
        # A greenlet that publishes is copied by a fork, and the copy finds the Writer closed.
        unfinished = max(0, self.begun - sum(self.outcomes.values()))
        stored = sum(self.outcomes[outcome] for outcome in (OK, NOT_KNOWN, IN_PART))
        return stored + unfinished


@dataclass
class Account:
    """The result for one client. ``wrong``: what may not happen, a line for each."""

    name: str
    published: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    handled: int = 0
    repeated: Counter[str] = field(default_factory=Counter)
    lost: list[int] = field(default_factory=list)
    phantoms: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def repeats(self) -> int:
        return sum(self.repeated.values()) + len(self.unexplained)

    @property
    def is_right(self) -> bool:
        return not (self.lost or self.phantoms or self.unexplained or self.leaks or self.wrong)

    def complaints(self) -> list[str]:
        """A line for each kind of thing that is wrong, with the first few of them."""
        lines = []
        for what, found in (
            ("lost", [f"number {number}" for number in self.lost]),
            ("handled, but not published", self.phantoms),
            ("unexplained duplicate", self.unexplained),
            ("leaked", self.leaks),
            ("wrong", self.wrong),
        ):
            lines += [f"{self.name}: {what}: {text}" for text in found[:_SHOWN]]
            if len(found) > _SHOWN:
                lines.append(f"{self.name}: {what}: {len(found) - _SHOWN:,} more")
        return lines


class Ledger:
    """Reads the journals of one client, one after the other, and judges them."""

    def __init__(self, name: str, facts: Facts) -> None:
        self._facts = facts
        self._account = Account(name)
        self._tallies: dict[int, Tally] = defaultdict(Tally)
        self._losses: dict[int, list[float]] = defaultdict(list)
        # Every end of a connection, wanted or not.
        self._ends: dict[int, list[float]] = defaultdict(list)
        self._refused: dict[tuple[int, str], list[float]] = defaultdict(list)
        self._kills: dict[int, list[float]] = defaultdict(list)
        for fault in facts.faults:
            if fault.kind == "kill":
                for nsqd in set(facts.nsqds.values()):
                    if fault.concerns(nsqd):
                        self._kills[nsqd].append(fault.began)

    def read(self, path: Path, *, killed_at: float | None = None) -> None:
        """One journal; ``killed_at``: when its process was killed, if it was."""
        calls: dict[str, Call] = {}
        summary: dict[str, Any] | None = None
        for kind, at, fields in journal.read(path):
            if kind == journal.BEGUN:
                tally = self._tallies[int(fields[0])]
                tally.begun += 1
                tally.began = min(tally.began, at)
                tally.retried = tally.retried or fields[1] == "retried"
            elif kind == journal.ENDED:
                self._tallies[int(fields[0])].outcomes[fields[1]] += 1
            elif kind == journal.CALLED:
                call, number, where, id, deadline = fields
                self._called(calls, at, call, number, where, id, float(deadline))
            elif kind == journal.RETURNED:
                calls[fields[0]].returned, calls[fields[0]].how = at, fields[1]
            elif kind == journal.LOST:
                # A dial of an nsqd that never was is no loss of ours.
                if fields[0] in self._facts.nsqds:
                    self._losses[self._facts.nsqds[fields[0]]].append(at)
                    self._ends[self._facts.nsqds[fields[0]]].append(at)
            elif kind == journal.CLOSED:
                # The end that the Reader wanted, where nothing was done to the nsqd.
                nsqd = self._facts.nsqds.get(fields[0], -1)
                self._ends[nsqd].append(at)
                if self._fault_between(nsqd, at - _AFTERMATH, at):
                    self._losses[nsqd].append(at)
            elif kind == journal.ANSWER_FAILED:
                self._refused[self._facts.nsqds[fields[0]], fields[1]].append(at)
            elif kind == journal.WRONG:
                self._account.wrong.append(fields[0])
            elif kind == journal.SUMMARY:
                summary = json.loads(fields[0])
        if summary is not None:
            self._account.leaks += summary["leaks"]
        elif killed_at is None:
            self._account.wrong.append("the client did not come to its end")
        else:
            for nsqd in set(self._facts.nsqds.values()):
                self._losses[nsqd].append(killed_at)
                self._ends[nsqd].append(killed_at)

    def _called(
        self, calls: dict[str, Call], at: float, call: str, number: str, nsqd: str, id: str,
        deadline: float,
    ) -> None:  # fmt: skip
        calls[call] = Call(at, self._facts.nsqds[nsqd], id, deadline)
        if number == "None":
            self._account.phantoms.append(f"message {id} of {nsqd} has a body of nobody")
        else:
            self._tallies[int(number)].calls.append(calls[call])

    def close(self) -> Account:
        """Judge every number."""
        account = self._account
        for times in (
            *self._losses.values(),
            *self._ends.values(),
            *self._refused.values(),
            *self._kills.values(),
        ):
            times.sort()
        for number, tally in self._tallies.items():
            self._judge(number, tally)
        account.lost.sort()
        return account

    def _judge(self, number: int, tally: Tally) -> None:
        account = self._account
        outcomes = tally.outcomes
        account.published += 1
        account.outcomes.update(outcomes)
        if outcomes[OK] and not tally.calls:
            account.lost.append(number)
        if not tally.calls:
            return
        account.handled += 1
        if not tally.copies_allowed:
            how = ", ".join(outcomes) or "never published"
            account.phantoms.append(f"number {number}: {how}")
            return
        copies: dict[tuple[int, str], list[Call]] = defaultdict(list)
        for call in sorted(tally.calls, key=lambda call: call.at):
            copies[call.nsqd, call.id].append(call)
        if len(copies) > tally.copies_allowed and not tally.retried:
            account.unexplained.append(
                f"number {number} is stored {len(copies)} times, published"
                f" {tally.copies_allowed} times: {self._story(tally, tally.calls[0])}"
            )
        elif len(copies) > 1:
            account.repeated[UNKNOWN] += len(copies) - 1
        for calls in copies.values():
            for before, after in itertools.pairwise(calls):
                cause = self._killed(tally.began, calls, after) or self._cause(before, after)
                if cause is None:
                    story = self._story(tally, before)
                    context = self._context(before, after)
                    account.unexplained.append(f"number {number}: {story}; {context}")
                else:
                    account.repeated[cause] += 1

    def _cause(self, before: Call, after: Call) -> str | None:
        """Why nsqd delivered a message again that it had delivered before."""
        nsqd = before.nsqd
        if before.how == "requeue":
            return REQUEUED
        if before.returned is None:
            return UNANSWERED
        for loss in _between(self._losses[nsqd], before.at - _UNSENT_SECONDS, after.at):
            if before.returned >= loss - self._doubt(nsqd, loss):
                return CONNECTION
        return TIMED_OUT if self._was_late(before, after) else None

    def _killed(self, published: float, calls: list[Call], call: Call) -> str | None:
        """Whether it is one of those that the last kill of nsqd has brought back.

        nsqd then reads its channel's queue again, where each delivery before may have left a
        record, and its topic's queue, from where it comes once more
        (docs/protocol/end#sync-window). Several copies of a message are then on their way at a
        time, and each connection that ends brings one back, whether a handler has seen it or not.
        """
        kills = _between(self._kills[call.nsqd], published, call.at)
        if not kills:
            return None
        seen = sum(other.at < kills[-1] for other in calls)
        unseen = len(_between(self._ends[call.nsqd], published, call.at))
        before = max(1, seen) + unseen
        since = sum(kills[-1] <= other.at <= call.at for other in calls)
        return KILLED if since <= before + 1 else None

    def _was_late(self, before: Call, after: Call) -> bool:
        """Whether its answer came when nsqd had taken the message back.

        That nsqd refused the answer is no excuse by itself: the answer must have been late, or
        a fault have held up the message or its answer.
        """
        assert before.returned is not None
        if before.returned + _UNSENT_SECONDS / 2 >= before.deadline:
            return True
        key = (before.nsqd, before.id)
        refused = _between(self._refused[key], before.at, after.at + _AFTERMATH)
        timed_out = after.at >= before.deadline - self._facts.msg_timeout / 2
        held_up = self._fault_between(
            before.nsqd, before.deadline - self._facts.msg_timeout - _AFTERMATH, after.at
        )
        return held_up is not None and (timed_out or bool(refused))

    def _doubt(self, nsqd: int, loss: float) -> float:
        """How long before this loss nsqd may have stopped to read what it was sent."""
        fault = self._fault_between(nsqd, loss - _AFTERMATH, loss)
        return _UNSENT_SECONDS + (0.0 if fault is None else max(0.0, loss - fault.began))

    def _story(self, tally: Tally, before: Call) -> str:
        """For whoever has to find out why: all calls, in seconds from ``before``."""
        parts = [f"published {tally.began - before.at:+.3f}: {dict(tally.outcomes)}"]
        for call in tally.calls:
            received = call.deadline - self._facts.msg_timeout - before.at
            ended = "" if call.returned is None else f" to {call.returned - before.at:+.3f}"
            parts.append(
                f"nsqd {call.nsqd} {call.id} received at {received:+.3f}, handled at"
                f" {call.at - before.at:+.3f}{ended}, {call.how or 'no end'}"
            )
        return "; ".join(parts)

    def _context(self, before: Call, after: Call) -> str:
        """What happened around these two calls, in seconds from the first."""
        begin, end, nsqd = before.at - 2 * _AFTERMATH, after.at + 1.0, before.nsqd
        parts = [
            f"{fault.kind} at {fault.began - before.at:+.3f} to {fault.ended - before.at:+.3f}"
            for fault in self._facts.faults
            if fault.concerns(nsqd) and fault.began <= end and fault.ended >= begin
        ]
        ends = _between(self._ends[nsqd], begin, end)
        parts += [f"end of a connection at {at - before.at:+.3f}" for at in ends[-2 * _SHOWN :]]
        kills = _between(self._kills[nsqd], -math.inf, end)
        parts += [f"kill at {at - before.at:+.3f}" for at in kills]
        refused = self._refused[nsqd, before.id]
        parts += [f"answer refused at {at - before.at:+.3f}" for at in refused]
        return "around it: " + (", ".join(parts) or "nothing")

    def _fault_between(self, nsqd: int, begin: float, end: float) -> Fault | None:
        """The fault that began first of those that touch these seconds."""
        found = [
            fault
            for fault in self._facts.faults
            if fault.concerns(nsqd) and fault.began <= end and fault.ended >= begin
        ]
        return min(found, key=lambda fault: fault.began, default=None)


def _between(times: list[float], begin: float, end: float) -> list[float]:
    return times[bisect.bisect_left(times, begin) : bisect.bisect_right(times, end)]


def total(name: str, accounts: Iterable[Account]) -> Account:
    """Their sum."""
    result = Account(name)
    for account in accounts:
        result.published += account.published
        result.outcomes += account.outcomes
        result.handled += account.handled
        result.repeated += account.repeated
        for mine, its in (
            (result.lost, account.lost),
            (result.phantoms, account.phantoms),
            (result.unexplained, account.unexplained),
            (result.leaks, account.leaks),
            (result.wrong, account.wrong),
        ):
            mine.extend(its)  # type: ignore[arg-type]
    return result
