"""``python -m tests.chaos.strikes``: exceptions from outside, at random instructions.

They hit the threads and greenlets that run the user's code: publishers, and the workers that call
the handler. Each verdict of a publish must be true, and the Writer and the Reader must go on.
Prints what happened; the exit status is 1 when something was wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from gnsqsync import Message, Reader, Writer
from gnsqsync.errors import NotSent, OutcomeUnknown
from gnsqsync.policy import ownership
from tests.support.servers import Server
from tests.support.world import World

TOPIC, CHANNEL = "strikes", "ch"
PUBLISHERS = 3
WORKERS = 3


# Held while a thread is started. Until it runs it has the id of the thread that starts it: CPython
# would strike the new one, and the other one would wait for it for ever.
_starting = threading.Lock()
_start = threading.Thread.start


def _start_unstruck(thread: threading.Thread) -> None:
    with _starting:
        _start(thread)


class Strike(BaseException):
    """As gevent.Timeout, GreenletExit, or KeyboardInterrupt."""


class Campaign:
    """One Writer and one Reader, whose threads or greenlets are struck for some seconds."""

    def __init__(self, world: World, nsqd: str, seed: int, workers: int) -> None:
        self._world = world
        self._count = workers
        self._chance = random.Random(seed)
        self._ending = False
        self.strikes = 0
        # By body: "OK", or the name of what was raised. A struck publish has no verdict.
        self.verdicts: dict[bytes, str] = {}
        self.handled: set[bytes] = set()
        # Threads or greenlets that have called the handler, and those that were struck.
        self._workers: set[Any] = set()
        self._struck: set[Any] = set()
        self.writer = Writer(nsqd, runtime=world.runtime, connect_timeout=2.0)
        self.reader = Reader(
            TOPIC,
            CHANNEL,
            self._handle,
            nsqd_tcp_addresses=nsqd,
            concurrency=workers,
            # A worker that is alone with one message reads by itself.
            max_in_flight=50 if workers > 1 else 1,
            # A message whose worker was struck before it could say REQ.
            msg_timeout=2.0,
            max_attempts=0,
            requeue_delay=0.0,
            max_backoff_duration=0.0,
            runtime=world.runtime,
        )

    def run(self, seconds: float) -> list[str]:
        """What was wrong."""
        self.reader.start(block=False)
        publishers = [self._world.spawn(self._publish, number) for number in range(PUBLISHERS)]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._world.sleep(self._chance.random() * 0.02)
            self._strike(self._chance.choice([p._handle for p in publishers] + self._live()))
        self._ending = True
        for publisher in publishers:
            publisher.join(60.0)
        return [*self._check_they_go_on(), *self._check_verdicts()]

    def _current(self) -> Any:
        if self._world.name == "gevent":
            import gevent

            return gevent.getcurrent()
        return threading.current_thread()

    def _live(self) -> list[Any]:
        """The workers that have called the handler and live."""
        workers = set(self._workers)
        if self._world.name == "gevent":
            gone = {one for one in workers if one.dead}
        else:
            gone = {one for one in workers if not one.is_alive()}
        self._workers -= gone
        return list(workers - gone - self._struck)

    def _strike(self, victim: Any) -> None:
        self.strikes += 1
        # A worker only once: it ends then, and a thread that begins may get its id.
        self._struck.add(victim)
        if self._world.name == "gevent":
            victim.kill(Strike, block=False)
        else:
            id = ctypes.c_ulong(victim.ident)
            with _starting:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(id, ctypes.py_object(Strike))

    def _handle(self, message: Message) -> None:
        self._workers.add(self._current())
        if not self._chance.randrange(100):
            self._world.sleep(0.002)
        self.handled.add(message.body)

    def _publish(self, number: int) -> None:
        numbers = count(1)
        while not self._ending:
            try:
                while not self._ending:
                    try:
                        self._publish_until_struck(number, numbers)
                    except Strike:
                        pass
            except Strike:
                # The strike hit the inner loop itself. The next strike is milliseconds away.
                pass

    def _publish_until_struck(self, number: int, numbers: Iterator[int]) -> None:
        while not self._ending:
            body = b"%d-%d" % (number, next(numbers))
            self.verdicts[body] = self._verdict(body)
            if self._count == 1:
                # A single thread needs fewer publishes: most strikes end its connection, too.
                self._world.sleep(0.01)

    def _verdict(self, body: bytes) -> str:
        try:
            self.writer.publish(TOPIC, body, timeout=3.0)
        except (NotSent, OutcomeUnknown) as error:
            return type(error).__name__
        return "OK"

    def _check_they_go_on(self) -> Iterator[str]:
        # What an exception left without an owner is found by time.
        end = time.monotonic() + 30.0
        number = 0
        while (verdict := self._verdict(b"last-%d" % number)) != "OK" and time.monotonic() < end:
            self.verdicts[b"last-%d" % number] = verdict
            number += 1
            self._world.sleep(0.1)
        self.verdicts[b"last-%d" % number] = verdict
        if verdict != "OK":
            yield f"the Writer did not recover: {verdict}"
        wanted = {body for body, verdict in self.verdicts.items() if verdict == "OK"}
        end = time.monotonic() + 30.0
        while wanted - self.handled and time.monotonic() < end:
            self._world.sleep(0.05)
        if missing := wanted - self.handled:
            yield f"{len(missing)} messages got OK and were never handled, as {min(missing)!r}"
        working = self.reader._running().workers.working
        if working != self._count:
            yield f"{working} workers are left of {self._count}"
        self.reader.stop(10.0)
        result = self.reader.join(30.0)
        if result is None or not result.clean:
            yield f"the Reader's stop: {result}"
        self.writer.close()

    def _check_verdicts(self) -> Iterator[str]:
        not_sent = {body for body, verdict in self.verdicts.items() if verdict == "NotSent"}
        if untrue := not_sent & self.handled:
            yield f"{len(untrue)} messages were NotSent and came, as {min(untrue)!r}"


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.strikes",
        description="Exceptions at random instructions; verdicts are true, and nothing is dead.",
    )
    parser.add_argument("--world", choices=["threads", "gevent"], default="threads")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long; 60 by default")
    parser.add_argument("--seed", type=int, default=random.randrange(1000))
    parser.add_argument(
        "--workers", type=int, default=WORKERS, help="3 by default; 1 has one message in flight"
    )
    parser.add_argument("--server", choices=["real", "embedded"], default="real")
    chosen = parser.parse_args(argv)
    # Not 5 s for each of them; and struck threads tell of themselves.
    ownership.GRACE_SECONDS = 0.5  # type: ignore[misc]
    logging.getLogger("gnsqsync").setLevel(logging.CRITICAL)
    threading.excepthook = lambda args: None
    threading.Thread.start = _start_unstruck  # type: ignore[method-assign]
    sys.setswitchinterval(0.0005)
    if chosen.world == "gevent":
        import gevent

        gevent.get_hub().exception_stream = None
    server = Server(chosen.server, "nsqd", []).start()
    try:
        address = "{}:{}".format(*server.tcp_address)
        campaign = Campaign(World(chosen.world), address, chosen.seed, chosen.workers)
        wrong = campaign.run(chosen.seconds)
    finally:
        server.discard()
    verdicts = Counter(campaign.verdicts.values())
    print(
        f"{chosen.world}, seed {chosen.seed}: {campaign.strikes:,} exceptions;"
        f" publishes: {', '.join(f'{count:,} {name}' for name, count in verdicts.items())};"
        f" {len(campaign.handled):,} handled"
    )
    for text in wrong:
        print(f"  {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
