"""nsqds that die with their data, under Writers with two copies and a consumer with a KeyWindow.

    python -m tests.chaos.copies [--kills 10] [--copies 2] [--no-window]

Three real nsqds. Threads publish numbered messages. Again and again one nsqd is killed, its data
folder is emptied, and it starts anew. In the end each message that was acknowledged was handled,
and none twice. ``--copies 1`` and ``--no-window`` show what the parts are for. Exit status 1 when
something is missing or came twice.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field

from gnsqsync import KeyWindow, Message, Reader, Writer
from gnsqsync.errors import ClosedError, PublishError
from tests.support.servers import Server
from tests.support.waiting import eventually

_THREADS = 4
# Messages that are handled between two deaths.
_BETWEEN = 300


@dataclass
class Account:
    """``_lock`` guards both counters' growth; what is there stays."""

    acknowledged: set[str] = field(default_factory=set)
    handled: Counter[str] = field(default_factory=Counter)
    tried_again: int = 0
    kills: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def sent(self, number: str) -> None:
        with self._lock:
            self.acknowledged.add(number)

    def handle(self, message: Message) -> None:
        with self._lock:
            self.handled[message.body.decode()] += 1

    def again(self) -> None:
        with self._lock:
            self.tried_again += 1

    @property
    def missing(self) -> set[str]:
        with self._lock:
            return self.acknowledged - self.handled.keys()

    @property
    def twice(self) -> int:
        with self._lock:
            return sum(count > 1 for count in self.handled.values())

    def __str__(self) -> str:
        return (
            f"{self.kills} nsqds killed and emptied; {len(self.acknowledged)} acknowledged,"
            f" {self.tried_again} times published again after an error,"
            f" {len(self.handled)} handled, {len(self.missing)} missing, {self.twice} handled"
            " more than once"
        )


def publish(writer: Writer, topic: str, account: Account, name: str, over: threading.Event) -> None:
    number = 0
    while not over.is_set():
        key = f"{name}-{number}"
        try:
            writer.publish(topic, key, headers={"key": key}, timeout=2.0)
        except ClosedError:
            return
        except PublishError:
            # With the same key.
            account.again()
            over.wait(0.05)
            continue
        account.sent(key)
        number += 1
        over.wait(0.001)


def run(kills: int, *, copies: int = 2, window: bool = True, seed: int = 1) -> Account:
    """The account, when all that is left in the nsqds was handled."""
    rng = random.Random(seed)
    account, over = Account(), threading.Event()
    servers = [Server("real", "nsqd").start() for _ in range(3)]
    addresses = ["{}:{}".format(*server.tcp_address) for server in servers]
    reader = Reader(
        "copies",
        "effects",
        account.handle,
        nsqd_tcp_addresses=addresses,
        headers=True,
        max_in_flight=200,
        concurrency=2,
        middleware=[KeyWindow(1_000_000, delay=0.1)] if window else [],
        max_backoff_duration=0,
    )
    try:
        with Writer(addresses, copies=copies, headers=True) as writer, reader:
            threads = [
                threading.Thread(target=publish, args=(writer, "copies", account, str(n), over))
                for n in range(_THREADS)
            ]
            for thread in threads:
                thread.start()
            try:
                for _ in range(kills):
                    grown = len(account.handled) + _BETWEEN
                    eventually(lambda grown=grown: len(account.handled) >= grown, 60)
                    die(rng.choice(servers), account)
                    # What the others had alone by now is handled before the next one dies.
                    known = set(account.acknowledged)
                    if copies > 1:
                        eventually(lambda known=known: known <= account.handled.keys(), 60)
            finally:
                over.set()
                for thread in threads:
                    thread.join()
            if copies > 1:
                eventually(lambda: not account.missing, 60, describe=lambda: str(account))
    finally:
        for server in servers:
            server.discard()
    return account


def die(server: Server, account: Account) -> None:
    server.kill()
    shutil.rmtree(server.data_path)
    server.data_path.mkdir()
    server.start()
    account.kills += 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--copies", type=int, default=2)
    parser.add_argument("--no-window", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    account = run(given.kills, copies=given.copies, window=not given.no_window, seed=given.seed)
    print(account)
    return 1 if account.missing or account.twice else 0


if __name__ == "__main__":
    sys.exit(main())
