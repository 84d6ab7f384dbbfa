"""The report of runs: a table for people, by rich on a terminal, plain text elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from tests.chaos.accounts import CAUSES, IN_PART, NOT_KNOWN, NOT_SENT, OK, REFUSED, Account
from tests.chaos.field import Result

HEAD = (
    "run", "world", "OK", "unknown", "not sent", "refused", "handled", "repeated", "lost",
    "unexplained", "leaked", "wrong",
)  # fmt: skip


def row(name: str, account: Account) -> tuple[str, ...]:
    outcomes = account.outcomes
    numbers = (
        outcomes[OK], outcomes[NOT_KNOWN], outcomes[NOT_SENT],
        outcomes[REFUSED] + outcomes[IN_PART], account.handled,
        account.repeats, len(account.lost), len(account.unexplained) + len(account.phantoms),
        len(account.leaks), len(account.wrong),
    )  # fmt: skip
    return (name, account.name, *(f"{number:,}" for number in numbers))


def causes(accounts: Sequence[Account]) -> str:
    """The repetitions of all of them by cause."""
    sums = {cause: sum(account.repeated[cause] for account in accounts) for cause in CAUSES}
    return ", ".join(f"{cause} {count:,}" for cause, count in sums.items() if count) or "none"


def faults(results: Sequence[Result]) -> str:
    sums: dict[str, int] = {}
    for result in results:
        for kind, count in result.faults.items():
            sums[kind] = sums.get(kind, 0) + count
    return ", ".join(f"{kind} {count:,}" for kind, count in sorted(sums.items())) or "none"


def plain(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def show(results: Sequence[Result], sums: Sequence[Account], to: TextIO = sys.stdout) -> None:
    """All runs, their sums, what was done and what is wrong."""
    accounts = [account for result in results for account in result.accounts]
    rows = [row(result.name, account) for result in results for account in result.accounts]
    rows += [row("all", account) for account in sums]
    if to.isatty():
        _pretty(rows)
    else:
        print(plain([HEAD, *rows]), file=to)
    print(f"\nfaults: {faults(results)}", file=to)
    print(f"repeated by cause: {causes(accounts)}", file=to)
    for result in results:
        for line in result.complaints():
            print(line, file=to)
        if not result.is_right:
            print(f"{result.name}: seed {result.seed}", file=to)
            if result.logs:
                print(result.logs, file=to)
    right = all(result.is_right for result in results)
    print("nothing lost, everything explained" if right else "FAILED", file=to)


def _pretty(rows: Sequence[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*HEAD[:2])
    for name in HEAD[2:]:
        table.add_column(name, justify="right")
    for cells in rows:
        table.add_row(*cells)
    Console().print(table)
