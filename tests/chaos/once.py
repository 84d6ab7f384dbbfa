"""Money moves between accounts while everything is killed, and then each effect is counted.

    python -m tests.chaos.once [--minutes 1] [--seed N] [--without outbox|inbox|copies]

A Django bank on PostgreSQL: a web server takes money and writes to the outbox, a relay publishes
with two copies to three real nsqds, two consumers give the money and confirm it, each through the
inbox. At random moments one of them is killed, or an nsqd with or without its data folder, or the
database. In the end each transfer that a client was told of is there, each transfer was given and
confirmed once and not before its time, and no money came or went. ``--without`` switches one part
off: then something is wrong. Exit status 1 when something is wrong, and 2 when it cannot run.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import requests

from gnsqsync import NsqdHTTP
from tests.support import realnsq
from tests.support.databases import Unavailable
from tests.support.postgres import Postgres
from tests.support.programs import Program
from tests.support.servers import Server

PARTS = ("outbox", "inbox", "copies")
BANK = Path(__file__).parent / "bank"
ACCOUNTS, BALANCE = 10, 1_000_000
# Who asks for transfers, side by side.
CLIENTS = 4
# Seconds between two strikes, at most; and until what was struck is started again.
BETWEEN, AWAY = 2.0, 1.0
# Seconds in which all that was published before is handled.
PATIENCE = 60.0


@dataclass
class Account:
    """What was done and what came of it. ``_lock`` guards what clients note."""

    seed: int
    without: str = ""
    kills: Counter[str] = field(default_factory=Counter)
    told: set[str] = field(default_factory=set)
    refused: int = 0
    unknown: int = 0
    # Processes that ended though nobody had killed them.
    ended: list[str] = field(default_factory=list)
    # Each time that something due was not handled in time: what was missing, and where it was.
    unsettled: list[str] = field(default_factory=list)
    # When what was struck, by the clock on the wall.
    strikes: list[str] = field(default_factory=list)
    # The first transfers that are lost, and when they were due.
    lost: list[str] = field(default_factory=list)
    # What the nsqds still have.
    left: list[str] = field(default_factory=list)
    # What the database has in the end, by the name of a check: how many are wrong.
    wrong: dict[str, int] = field(default_factory=dict)
    found: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def note(self, status: int | None, number: str) -> None:
        with self._lock:
            if status == 200:
                self.told.add(number)
            elif status == 409:
                self.refused += 1
            else:
                self.unknown += 1

    @property
    def is_right(self) -> bool:
        return not any(self.wrong.values()) and not self.ended and not self.unsettled

    def __str__(self) -> str:
        kills = ", ".join(f"{what} {count}" for what, count in sorted(self.kills.items()))
        lines = [
            f"seed {self.seed}" + (f", without {self.without}" if self.without else ""),
            f"killed: {kills or 'nothing'}",
            f"clients: {len(self.told):,} transfers confirmed, {self.unknown:,} in doubt,"
            f" {self.refused:,} refused",
            "database: " + ", ".join(f"{name} {count:,}" for name, count in self.found.items()),
            *(f"WRONG: {name}: {count:,}" for name, count in self.wrong.items() if count),
            *(f"WRONG: ended by itself: {what}" for what in self.ended),
        ]
        lines += [f"WRONG: not handled in time: {what}" for what in self.unsettled]
        if self.lost or self.unsettled:
            lines += ["lost:", *self.lost, "left in nsqds:", *self.left, "struck:", *self.strikes]
        return "\n".join([*lines, "right" if self.is_right else "NOT RIGHT"])


class Bank:
    """All of its processes."""

    def __init__(self, folder: Path, account: Account) -> None:
        self._account = account
        self._folder = folder
        shutil.copytree(BANK, folder / "bank", ignore=shutil.ignore_patterns("__pycache__"))
        self._names = itertools.count()
        self.nsqds = [Server("real", "nsqd") for _ in range(3)]
        self.database = Postgres()
        # Bound and not listened to, so that it is nobody else's while the web server is away.
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", 0))
        self.port = self._held.getsockname()[1]
        self.programs: dict[str, Program] = {}

    def start(self) -> None:
        for nsqd in self.nsqds:
            nsqd.start()
        self.database.start()
        self.environment = {
            "BANK_POSTGRES": self.database.host,
            "BANK_NSQDS": ",".join("{}:{}".format(*nsqd.tcp_address) for nsqd in self.nsqds),
            "BANK_WITHOUT": self._account.without,
        }
        self._program("manage.py", "migrate", "--run-syncdb", "-v0").end()
        with self.ask() as connection:
            connection.execute(
                "INSERT INTO bank_account (balance) SELECT %s FROM generate_series(1, %s)",
                (BALANCE, ACCOUNTS),
            )
        for name in ("web server", "relay", "consumer", "other consumer"):
            self.begin(name)

    def begin(self, name: str) -> None:
        words = {
            "web server": ("web.py", str(self.port)),
            "relay": ("manage.py", "nsq_relay", "--interval", "0.05"),
        }.get(name, ("manage.py", "nsq_consume"))
        self.programs[name] = self._program(*words)

    def _program(self, *words: str) -> Program:
        # Its output goes to a folder of its own.
        folder = self._folder / f"program {next(self._names)}"
        folder.mkdir()
        return Program(["python", *words], folder, self.environment, cwd=self._folder / "bank")

    def ask(self) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host=self.database.host, user="postgres", dbname="postgres", autocommit=True
        )

    def left(self) -> list[str]:
        """What the nsqds still have, and who could take it."""
        found = []
        for nsqd in self.nsqds:
            port = nsqd.tcp_address[1]
            with NsqdHTTP("http://{}:{}".format(*nsqd.http_address)) as http:
                topics = http.stats().topics
            for topic in topics:
                if topic.depth:
                    found.append(f"{port} {topic.topic_name}: {topic.depth} wait")
                for channel in topic.channels:
                    counts = channel.depth, channel.in_flight_count, channel.deferred_count
                    clients = ", ".join(
                        f"{client.remote_address} RDY {client.ready_count}"
                        f" in flight {client.in_flight_count} finished {client.finish_count}"
                        for client in channel.clients
                    )
                    found.append(
                        f"{port} {topic.topic_name}/{channel.channel_name}: {counts[0]} wait,"
                        f" {counts[1]} in flight, {counts[2]} deferred; {clients or 'nobody'}"
                    )
        return found

    def look_after(self) -> None:
        """What ended by itself is noted, and started again as a supervisor does."""
        for name, program in self.programs.items():
            status = program.process.poll()
            if status is not None:
                last = program.output.strip().splitlines()[-1:]
                self._account.ended.append(f"{name}, {status}: {''.join(last)}")
                self.begin(name)

    def close(self) -> None:
        for program in self.programs.values():
            program.kill()
        for nsqd in self.nsqds:
            nsqd.discard()
        self.database.close()
        self._held.close()


def transfers(
    bank: Bank, account: Account, name: str, rng: random.Random, over: threading.Event
) -> None:
    """A client: one transfer after the other, each with a number of its own."""
    with requests.Session() as session:
        for number in itertools.count():
            if over.is_set():
                return
            source, target = rng.sample(range(1, ACCOUNTS + 1), 2)
            form = {
                "number": f"{name}-{number}",
                "source": source,
                "target": target,
                "amount": rng.randint(1, 1000),
                "after": rng.choice((0, 0, 0, rng.uniform(0, 3))),
            }
            try:
                answer = session.post(f"http://127.0.0.1:{bank.port}/transfer", form, timeout=10)
            except requests.RequestException:
                account.note(None, form["number"])
                over.wait(0.1)
            else:
                account.note(answer.status_code, form["number"])


class Strikes:
    """What kills, at random."""

    def __init__(self, bank: Bank, account: Account, rng: random.Random, patience: float) -> None:
        self._bank, self._account, self._rng, self._patience = bank, account, rng, patience
        self._ways: dict[str, Callable[[str], None]] = {
            "web server": self._program,
            "relay": self._program,
            "consumer": self._program,
            "other consumer": self._program,
            "nsqd": self._nsqd,
            "nsqd and its disk": self._nsqd,
            "database": self._database,
        }

    def strike(self) -> None:
        what = self._rng.choice(list(self._ways))
        if self._ways[what] == self._nsqd and not self._all_is_handled():
            return
        self._ways[what](what)
        self._account.kills[what] += 1

    def _all_is_handled(self) -> bool:
        """Whether one more loss can be borne. Where a part is switched off, that is what shows."""
        if settle(self._bank, self._patience) or self._account.without:
            return True
        self._note("nothing, as not all is handled")
        missing = "; ".join(unconfirmed(self._bank)[:5])
        where = "\n  ".join(self._bank.left())
        self._account.unsettled.append(f"{missing}\n  {where}")
        return False

    def _note(self, what: str) -> None:
        self._account.strikes.append(f"{datetime.now(UTC):%H:%M:%S.%f} {what}")

    def _away(self) -> None:
        time.sleep(self._rng.choice((0, self._rng.uniform(0, AWAY))))

    def _program(self, what: str) -> None:
        self._note(what)
        self._bank.programs[what].kill()
        self._away()
        self._bank.begin(what)

    def _database(self, what: str) -> None:
        # Its processes are killed, and it recovers from its log.
        self._note(what)
        self._bank.database.stop("immediate")
        self._away()
        self._bank.database.start()

    def _nsqd(self, what: str) -> None:
        # A killed nsqd loses what it has in memory, with its disk or without it. Two copies bear
        # the loss of one nsqd; so what others have alone since the last one was handled before.
        nsqd = self._rng.choice(self._bank.nsqds)
        self._note(f"{what} {nsqd.tcp_address[1]}")
        nsqd.kill()
        if what != "nsqd":
            shutil.rmtree(nsqd.data_path)
            nsqd.data_path.mkdir()
        self._away()
        nsqd.start()
        self._note("it is back")


UNCONFIRMED = """
    SELECT count(*) FROM bank_transfer t WHERE due < %s
    AND NOT EXISTS (SELECT 1 FROM bank_receipt r WHERE r.number = t.number)
"""
LEFT = "SELECT count(*) FROM gnsqsync_outbox_outboxmessage"


def settle(bank: Bank, patience: float, *, to_the_end: bool = False) -> bool:
    """Wait until all that is due now has its receipt, or all there is."""
    with bank.ask() as connection:

        def number(query: str, *values: Any) -> Any:
            row = connection.execute(query, values).fetchone()
            assert row is not None
            return row[0]

        until = "infinity" if to_the_end else number("SELECT now()")
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            bank.look_after()
            if not number(UNCONFIRMED, until) and not (to_the_end and number(LEFT)):
                return True
            # A table has no event to wait for.
            time.sleep(0.05)
    return False


# How many rows break it.
CHECKS = {
    "a transfer that was never given": """
        SELECT count(*) FROM bank_transfer t
        WHERE NOT EXISTS (SELECT 1 FROM bank_credit c WHERE c.number = t.number)""",
    "a transfer that was given twice": """
        SELECT count(*) FROM (SELECT 1 FROM bank_credit GROUP BY number HAVING count(*) > 1) x""",
    "a transfer that was never confirmed": """
        SELECT count(*) FROM bank_transfer t
        WHERE NOT EXISTS (SELECT 1 FROM bank_receipt r WHERE r.number = t.number)""",
    "a transfer that was confirmed twice": """
        SELECT count(*) FROM (SELECT 1 FROM bank_receipt GROUP BY number HAVING count(*) > 1) x""",
    "money that was given and never taken": """
        SELECT count(*) FROM bank_credit c
        WHERE NOT EXISTS (SELECT 1 FROM bank_transfer t
                          WHERE t.number = c.number AND t.amount = c.amount)""",
    "money that was given before its time": """
        SELECT count(*) FROM bank_credit c JOIN bank_transfer t ON t.number = c.number
        WHERE c.at < t.due""",
    "a key of several messages": """
        SELECT count(*) FROM (SELECT 1 FROM (
            SELECT key FROM bank_credit UNION ALL SELECT key FROM bank_receipt
        ) keys GROUP BY key HAVING count(*) > 1) x""",
    "a row that is left in the outbox": LEFT,
    "money that came or went": f"""
        SELECT abs(sum(balance) - {ACCOUNTS * BALANCE})::bigint FROM bank_account""",
}
FOUND = {
    "transfers": "SELECT count(*) FROM bank_transfer",
    "of them scheduled": "SELECT count(*) FROM bank_transfer WHERE scheduled",
    "given": "SELECT count(*) FROM bank_credit",
    "confirmed": "SELECT count(*) FROM bank_receipt",
    "markers": "SELECT count(*) FROM gnsqsync_inbox_inboxmarker",
}


def unconfirmed(bank: Bank) -> list[str]:
    """The first transfers without a receipt, and what each of them waits for."""
    query = """
        SELECT due, number,
            EXISTS (SELECT 1 FROM bank_credit c WHERE c.number = t.number)
        FROM bank_transfer t
        WHERE NOT EXISTS (SELECT 1 FROM bank_receipt r WHERE r.number = t.number)
        ORDER BY due LIMIT 20"""
    with bank.ask() as connection:
        return [
            f"{due:%H:%M:%S.%f} {name} {'given, not confirmed' if given else 'not given'}"
            for due, name, given in connection.execute(query)
        ]


def count(bank: Bank, account: Account) -> None:
    with bank.ask() as connection:

        def number(query: str) -> int:
            row = connection.execute(query).fetchone()
            assert row is not None
            return int(row[0])

        account.found = {name: number(query) for name, query in FOUND.items()}
        account.wrong = {name: number(query) for name, query in CHECKS.items()}
        known = {row[0] for row in connection.execute("SELECT number FROM bank_transfer")}
    account.lost = unconfirmed(bank)
    account.wrong["a client was told of a transfer that is not there"] = len(account.told - known)
    if account.without != "inbox":
        markers = account.found["given"] + account.found["confirmed"]
        account.wrong["effects without a marker, or markers without an effect"] = abs(
            markers - account.found["markers"]
        )


def run(minutes: float, seed: int, *, without: str = "", patience: float = PATIENCE) -> Account:
    """The account, when all that was asked for is done or will never be."""
    rng = random.Random(seed)
    account, over = Account(seed, without), threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        bank = Bank(Path(folder), account)
        clients = [
            threading.Thread(
                target=transfers,
                args=(bank, account, f"client{n}", random.Random(f"{seed}:{n}"), over),
            )
            for n in range(CLIENTS)
        ]
        try:
            bank.start()
            for client in clients:
                client.start()
            strikes = Strikes(bank, account, rng, patience)
            deadline = time.monotonic() + minutes * 60
            while time.monotonic() < deadline:
                time.sleep(rng.uniform(0, BETWEEN))
                bank.look_after()
                strikes.strike()
            over.set()
            for client in clients:
                client.join()
            settle(bank, patience, to_the_end=True)
            count(bank, account)
            account.left = bank.left()
        finally:
            over.set()
            for client in clients:
                if client.is_alive():
                    client.join()
            bank.close()
    return account


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--without", choices=PARTS, default="")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    try:
        realnsq.find_or_build()
        # Where something is lost, it does not help to wait for it.
        patience = 3.0 if given.without else PATIENCE
        account = run(given.minutes, seed, without=given.without, patience=patience)
    except (realnsq.Unavailable, Unavailable) as error:
        print(error, file=sys.stderr)
        return 2
    print(account)
    return 0 if account.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
