"""``python -m tests.chaos.slow_handlers``: handlers slower than ``msg_timeout``, on the real nsqd.

nsqd takes back what is in flight, again and again, and delivers it again or sends other messages,
so a healthy one sends more than RDY allows. Prints a line for each variant; the exit status is 1
when a connection was lost or nothing was finished, and 2 when it cannot run.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gnsqsync import Message, Observer, Reader, Writer
from tests.support import realnsq
from tests.support.servers import ROOT, Server

TOPIC, CHANNEL = "slow", "ch"
MSG_TIMEOUT = 1.0
BATCH = 1000


@dataclass(frozen=True)
class Variant:
    """What runs: ``waiting`` messages are kept at nsqd; handlers take ``shortest`` to
    ``longest`` seconds."""

    name: str
    world: str
    waiting: int
    form: str = "handler"
    max_in_flight: int = 1000
    concurrency: int = 50
    size: int = 100
    shortest: float = 1.5
    longest: float = 3.0


VARIANTS = [
    Variant(f"{name}-{world}", world, **options)  # type: ignore[arg-type]
    for world in ("threads", "gevent")
    for name, options in {
        # nsqd has others to send, or the same again.
        "many": {"waiting": 200_000},
        "few": {"waiting": 900},
        "large": {"waiting": 2_000, "size": 100_000},
        "detached": {"waiting": 20_000, "form": "detached", "concurrency": 5},
        "lists": {"waiting": 20_000, "form": "lists"},
    }.items()
]


class Losses(Observer):
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def lost(self, nsqd_address: str, reason: Exception) -> None:
        self.reasons.append(f"{type(reason).__name__}: {reason}")


class Client:
    """One Reader in this process, and what it met."""

    def __init__(self, variant: Variant, nsqd: str) -> None:
        self._variant = variant
        self._nsqd = nsqd
        self._sleep: Callable[[float], None] = time.sleep
        self._spawn: Callable[..., object] = _thread
        if variant.world == "gevent":
            import gevent

            self._sleep, self._spawn = gevent.sleep, gevent.spawn
        self._losses = Losses()
        self._chance = random.Random(variant.name)
        self._handled = 0
        self._most = 0
        self._ending = False

    def run(self, seconds: float) -> dict[str, object]:
        variant = self._variant
        writer = Writer(self._nsqd, runtime=variant.world)
        reader = Reader(
            TOPIC,
            CHANNEL,
            None if variant.form == "lists" else self._handle,
            nsqd_tcp_addresses=self._nsqd,
            max_in_flight=variant.max_in_flight,
            concurrency=variant.concurrency,
            max_attempts=0,
            msg_timeout=MSG_TIMEOUT,
            observer=self._losses,
            runtime=variant.world,
        )
        self._publish(writer, variant.waiting)
        if variant.form == "lists":
            self._spawn(self._take_lists, reader)
        else:
            reader.start(block=False)
        end = time.monotonic() + seconds
        published = 0
        while time.monotonic() < end:
            self._sleep(0.25)
            if reader._run is None:
                continue  # the list-taking thread is just starting it
            stats = reader.stats()
            self._most = max(self._most, stats.in_flight)
            missing = stats.finished - published
            if missing >= 10:
                self._publish(writer, missing)
                published += missing
        stats = reader.stats()
        lost = list(self._losses.reasons)
        self._ending = True
        reader.stop(5.0)
        reader.join()
        writer.close()
        return {
            "received": stats.received,
            "handled": self._handled,
            "finished": stats.finished,
            "refused": stats.answers_failed,
            "most_in_flight": self._most,
            "memory_mb": _memory() // 2**20,
            "lost": lost,
        }

    def _publish(self, writer: Writer, count: int) -> None:
        body = b"x" * self._variant.size
        for start in range(0, count, BATCH):
            writer.publish_many(TOPIC, [body] * min(BATCH, count - start))

    def _work(self) -> None:
        self._sleep(self._chance.uniform(self._variant.shortest, self._variant.longest))
        self._handled += 1

    def _handle(self, message: Message) -> None:
        if self._variant.form == "detached":
            message.detach()
            self._spawn(self._work_aside, message)
        else:
            self._work()

    def _work_aside(self, message: Message) -> None:
        self._work()
        message.finish()

    def _take_lists(self, reader: Reader) -> None:
        for number, batch in enumerate(reader.batches(200, 0.5)):
            self._work()
            # Each third list is forgotten.
            if number % 3:
                reader.finish(batch)


def _thread(function: Callable[..., object], *args: object) -> None:
    threading.Thread(target=function, args=args, daemon=True).start()


def _memory() -> int:
    """What this process has in memory now, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def run(variants: Sequence[Variant], seconds: float) -> list[tuple[Variant, dict[str, object]]]:
    """All at once, each client in a process of its own, beside an nsqd of its own."""
    running = []
    try:
        for variant in variants:
            server = Server("real", "nsqd", ["-mem-queue-size=10000"]).start()
            words = [
                sys.executable,
                "-m",
                "tests.chaos.slow_handlers",
                "--client",
                json.dumps(asdict(variant)),
            ]
            words += ["--nsqd", "{}:{}".format(*server.tcp_address)]
            words += ["--minutes", str(seconds / 60)]
            client = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            running.append((variant, server, client))
        results = []
        for variant, _, client in running:
            out, _ = client.communicate(timeout=seconds + 120)
            found = {"lost": [f"the client ended with {client.returncode}"], "finished": 0}
            results.append((variant, json.loads(out) if client.returncode == 0 else found))
        return results
    finally:
        for _, server, client in running:
            client.kill()
            client.wait()
            server.discard()


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.slow_handlers",
        description="Handlers slower than msg_timeout, on the real nsqd; no connection may end.",
    )
    names = [variant.name for variant in VARIANTS]
    parser.add_argument("--minutes", type=float, default=1.0, help="how long; 1 by default")
    parser.add_argument(
        "--variant", action="append", choices=names, metavar="NAME",
        help=f"only this one; may be repeated: {', '.join(names)}",
    )  # fmt: skip
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--nsqd", help=argparse.SUPPRESS)
    chosen = parser.parse_args(argv)
    seconds = chosen.minutes * 60
    if chosen.client:
        variant = Variant(**json.loads(chosen.client))
        print(json.dumps(Client(variant, chosen.nsqd).run(seconds)))
        return 0
    try:
        realnsq.find_or_build()
    except realnsq.Unavailable as error:
        print(error, file=sys.stderr)
        return 2
    results = run([v for v in VARIANTS if v.name in (chosen.variant or names)], seconds)
    bad = False
    for variant, found in results:
        print(f"{variant.name:<18}", " ".join(f"{key} {value}" for key, value in found.items()))
        bad = bad or bool(found["lost"]) or not found["finished"]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
