"""The program under test: publishes and consumes without a pause, and writes down all that happens.

A process of its own, in one world; ``tests.chaos.patched_client`` is the same on gevent. It takes
orders from a socket, a JSON line each, and knows nothing of the faults around it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import queue
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from gnsqsync import Message, Observer, Reader, Requeue, Writer
from gnsqsync.errors import (
    ClosedError,
    MpubFailed,
    NotSent,
    OutcomeUnknown,
    PublishError,
    Refused,
)
from gnsqsync.stats import ReaderStats
from tests.chaos import accounts, journal, mutations
from tests.chaos.journal import Journal
from tests.support import leftovers

LEAVE_SECONDS = 20.0
# Descriptors and threads that ended tasks still hold are gone by then.
LEAK_GRACE = 10.0


class Killed(BaseException):
    """What ends a thread from inside a handler, as GreenletExit ends a greenlet."""


def outcome_of(error: BaseException | None) -> str:
    kinds = (
        (OutcomeUnknown, accounts.NOT_KNOWN),
        (NotSent, accounts.NOT_SENT),
        (Refused, accounts.REFUSED),
        (ClosedError, accounts.CLOSED),
    )
    if error is None:
        return accounts.OK
    if isinstance(error, Refused) and isinstance(error.error, MpubFailed):
        return accounts.IN_PART
    return next(name for kind, name in kinds if isinstance(error, kind))


def descriptors() -> set[str]:
    """What this process has open that is no socket, nor part of an event loop."""
    others = ("socket:", "anon_inode:", "/proc/")
    opened = leftovers.descriptors().items()
    return {f"{number} {name}" for number, name in opened if not name.startswith(others)}


class Noting(Observer):
    """Writes down what the accounts need of a Reader. ``stopping``: it was asked to end."""

    def __init__(self, notes: Journal) -> None:
        self.stopping = False
        self._notes = notes

    def lost(self, nsqd_address: str, reason: Exception) -> None:
        kind = journal.CLOSED if self.stopping else journal.LOST
        self._notes.note(kind, nsqd_address, reason)

    def answer_failed(self, nsqd_address: str, message_id: str, code: str) -> None:
        self._notes.note(journal.ANSWER_FAILED, nsqd_address, message_id, code)


class ErrorsAreWrong(logging.Handler):
    """What gnsqsync logs as an error is one, unless a handler wanted it."""

    def __init__(self, notes: Journal) -> None:
        super().__init__(logging.ERROR)
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, Killed) and type(error).__name__ != "GreenletExit":
            self._notes.note(journal.WRONG, f"log: {record.getMessage()} {error!r}")


class Handler:
    """Does with a share of the messages what the mix says, and finishes the others.

    A mix gives the probability of each mood; see ``_behave``.
    """

    def __init__(self, client: Client, slot: Slot) -> None:
        self._client = client
        self._slot = slot
        self._notes = client.notes
        self._chance = random.Random(f"{client.seed}:{slot.name}")

    def __call__(self, message: Message) -> None:
        call = next(self._client.calls)
        number = journal.number_of(message.body)
        self._notes.note(
            journal.CALLED,
            call,
            number,
            message.nsqd_address,
            message.id,
            f"{message.deadline:.6f}",
        )
        self._behave(self._client.mood(self._chance), call, message)

    def _behave(self, mood: str, call: int, message: Message) -> None:
        notes = self._notes
        if mood == "detach":
            message.detach()
            self._client.detached.put((call, message))
            return
        if mood in ("raise", "exit", "kill", "requeue"):
            notes.note(journal.RETURNED, call, "requeue")
        if mood == "raise":
            raise ValueError("a handler that fails")
        if mood == "requeue":
            raise Requeue(self._chance.choice((0, 0.05, 0.3)), backoff=self._chance.random() < 0.2)
        if mood == "exit":
            raise SystemExit(3)
        if mood == "kill":
            self._client.end_this_task()
        if mood == "hang":
            time.sleep(self._client.msg_timeout * self._chance.uniform(0.7, 1.6))
        elif mood == "stop":
            self._slot.stop(10.0)
        elif mood == "touch":
            message.touch()
        elif mood == "slow":
            time.sleep(self._chance.uniform(0.0, 0.05))
        notes.note(journal.RETURNED, call, "fin")


class Slot:
    """A place for a Reader: when one stops, the next one takes its place until the client ends."""

    def __init__(self, client: Client, name: str, **options: Any) -> None:
        self.name = name
        self.reader: Reader | None = None
        self.ended = 0
        self._client = client
        self._options = options
        self._handler = Handler(client, self)
        self._observer = Noting(client.notes)
        self.thread = threading.Thread(target=self._run, name=f"slot {name}", daemon=True)

    def _run(self) -> None:
        client = self._client
        while not client.finishing:
            self._observer = Noting(client.notes)
            self.reader = reader = Reader(
                client.topic,
                "ch",
                self._handler,
                observer=self._observer,
                **client.connection_options,
                **self._options,
            )
            result = reader.start()
            self.ended += 1
            assert result is not None
            if not result.clean:
                # Nobody tells of the connections that it closed with messages in flight.
                for nsqd in client.nsqds:
                    client.notes.note(journal.LOST, nsqd, f"stopped with {result}")

    def stats(self) -> ReaderStats | None:
        """Of the Reader in this place; None while the next one has not been started."""
        if self.reader is None:
            return None
        try:
            return self.reader.stats()
        except ClosedError:
            return None

    def stop(self, timeout: float) -> None:
        if self.reader is not None:
            self._observer.stopping = True
            self.reader.stop(timeout)


class Client:
    """All of it. ``settings`` is what the coordinator gives; see processes.ClientProcess."""

    def __init__(self, settings: dict[str, Any], control: socket.socket) -> None:
        self.seed = settings["seed"]
        self.topic: str = settings["topic"]
        self.nsqds: list[str] = settings["nsqds"]
        self.msg_timeout: float = settings["msg_timeout"]
        self.finishing = False
        self.calls = itertools.count()
        self.notes = Journal(Path(settings["journal"]))
        self.detached: queue.SimpleQueue[tuple[int, Message] | None] = queue.SimpleQueue()
        self.connection_options: dict[str, Any] = {
            "heartbeat_interval": settings["heartbeat"],
            "connect_timeout": 2.0,
            "address_map": settings["address_map"],
        }
        self._settings = settings
        self._control = control
        self._mix: dict[str, float] = {}
        self._publishing = True
        # A word for each publish that has no outcome yet; appending and popping are atomic.
        self._under_way: list[str] = []
        self._numbers = itertools.count(settings["base"])
        self._forked = itertools.count(1)
        self._bursts = itertools.count()
        self._wall_clock = time.time, time.time_ns
        # gevent makes its hub, with descriptors of its own, at the first wait.
        time.sleep(0.001)
        self._before = leftovers.alive()
        self._descriptors = descriptors()
        logging.getLogger("gnsqsync").addHandler(ErrorsAreWrong(self.notes))

    # -- what handlers ask -------------------------------------------------------------------

    def mood(self, chance: random.Random) -> str:
        mix = self._mix
        if not mix:
            return ""
        draw = chance.random()
        for mood, share in mix.items():
            draw -= share
            if draw < 0:
                return mood
        return ""

    def end_this_task(self) -> None:
        if self._settings["world"] == "gevent":
            import gevent

            gevent.getcurrent().kill(block=False)
            gevent.sleep(0)
        raise Killed

    # -- the parts -----------------------------------------------------------------------------

    def run(self) -> None:
        settings = self._settings
        consuming: dict[str, Any] = {
            "msg_timeout": settings["msg_timeout"],
            "max_attempts": 0,
            "requeue_delay": 0.1,
            "max_backoff_duration": 0.5,
            "backoff_multiplier": 0.05,
            "rdy_redistribute_interval": 0.5,
        }
        self._slots = [
            Slot(
                self,
                "direct",
                nsqd_tcp_addresses=self.nsqds,
                concurrency=4,
                max_in_flight=30,
                latency="throughput",
                **consuming,
            ),
        ]
        self._writers = [
            Writer(self.nsqds, publish_timeout=4.0, **self.connection_options),
            Writer(
                self.nsqds, publish_timeout=4.0, retry_unknown=True, policy="failover",
                **self.connection_options,
            ),
        ]  # fmt: skip
        if settings["lookupds"]:
            finding = {
                "lookupd_http_addresses": settings["lookupds"],
                "lookupd_poll_interval": 0.5,
            }
            self._slots.append(
                Slot(self, "found", concurrency=2, max_in_flight=20, **finding, **consuming)
            )
            self._writers.append(Writer(publish_timeout=4.0, **finding, **self.connection_options))
        threads = [slot.thread for slot in self._slots]
        threads.append(threading.Thread(target=self._answer, name="answers", daemon=True))
        publishers = [
            threading.Thread(
                target=self._publish, args=(who,), name=f"publisher {who}", daemon=True
            )
            for who in range(settings["publishers"])
        ]
        for thread in threads + publishers:
            thread.start()
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self._obey()
        self._finish(threads, publishers)

    def _on_sigterm(self, number: int, frame: object) -> None:
        self.finishing = True
        for slot in self._slots:
            slot.stop(LEAVE_SECONDS)
        # Wakes the thread that waits for orders.
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RD)

    def _finish(self, threads: list[threading.Thread], publishers: list[threading.Thread]) -> None:
        self.finishing = True
        for publisher in publishers:
            publisher.join(LEAVE_SECONDS)
        while any(slot.thread.is_alive() for slot in self._slots):
            for slot in self._slots:
                slot.stop(LEAVE_SECONDS)
                slot.thread.join(1.0)
        self.detached.put(None)
        for thread in threads:
            thread.join(LEAVE_SECONDS)
        for writer in self._writers:
            writer.close()
        time.time, time.time_ns = self._wall_clock
        self.notes.note(journal.SUMMARY, json.dumps({"leaks": self._leaks()}))
        self.notes.close()

    def _leaks(self) -> list[str]:
        deadline = time.monotonic() + LEAK_GRACE
        while True:
            left = (leftovers.alive() - self._before).texts()
            left += [f"descriptor {text}" for text in descriptors() - self._descriptors]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.02)

    # -- publishing ----------------------------------------------------------------------------

    def _publish(self, who: int) -> None:
        chance = random.Random(f"{self.seed}:publisher {who}")
        kinds = self._settings["kinds"]
        pause = self._settings["publishers"] / self._settings["rate"]
        while not self.finishing:
            if self._publishing:
                writer = self._writers[who % len(self._writers)]
                kind = chance.choices(list(kinds), list(kinds.values()))[0]
                self._under_way.append(kind)
                try:
                    self._publish_once(writer, kind, chance)
                except Exception as error:
                    self.notes.note(journal.WRONG, f"publish raised {error!r}")
                finally:
                    self._under_way.pop()
            time.sleep(pause * chance.uniform(0.2, 1.8))

    def _publish_once(self, writer: Writer, kind: str, chance: random.Random) -> None:
        count = chance.randrange(2, 20) if kind == "many" else 1
        numbers = [next(self._numbers) for _ in range(count)]
        bodies = [journal.body_of(number, self._size(chance)) for number in numbers]
        error: BaseException | None = None
        for _ in range(3):
            for number in numbers:
                self.notes.note(journal.BEGUN, number, "retried" if writer._retry_unknown else kind)
            if kind == "async":
                self._publish_aside(writer, numbers[0], bodies[0])
                return
            error = self._try(writer, kind, bodies, chance)
            for number in numbers:
                self.notes.note(journal.ENDED, number, outcome_of(error))
            # As a user would who cannot do without: publish again, at the price of a duplicate.
            if (
                not isinstance(error, OutcomeUnknown)
                or chance.random() < 0.5
                or self.notes.is_copied
            ):
                return

    def _try(
        self, writer: Writer, kind: str, bodies: list[bytes], chance: random.Random
    ) -> BaseException | None:
        try:
            if kind == "many":
                writer.publish_many(self.topic, bodies)
            elif kind == "defer":
                writer.publish(self.topic, bodies[0], defer=chance.uniform(0.05, 0.5))
            else:
                writer.publish(self.topic, bodies[0])
        except (PublishError, ClosedError) as error:
            return error
        return None

    def _publish_aside(self, writer: Writer, number: int, body: bytes) -> None:
        try:
            future = writer.publish_async(self.topic, body)
        except (PublishError, ClosedError) as error:
            self.notes.note(journal.ENDED, number, outcome_of(error))
            return
        self._under_way.append("async")

        def ended(done: Future[None]) -> None:
            self.notes.note(journal.ENDED, number, outcome_of(done.exception()))
            self._under_way.pop()

        future.add_done_callback(ended)

    def _size(self, chance: random.Random) -> int:
        return chance.choice((20, 100, 200, 200, 1000, chance.randrange(5000, 40_000)))

    # -- answers given elsewhere -----------------------------------------------------------------

    def _answer(self) -> None:
        chance = random.Random(f"{self.seed}:answers")
        while (item := self.detached.get()) is not None:
            call, message = item
            time.sleep(chance.uniform(0.0, 0.01))
            draw = chance.random()
            if draw < 0.2:
                message.touch()
            # Before the answer: nsqd may deliver it again at once.
            how = "fin" if draw < 0.8 else "requeue"
            self.notes.note(journal.RETURNED, call, how)
            _ = message.finish() if how == "fin" else message.requeue(0.05, backoff=False)

    # -- orders ----------------------------------------------------------------------------------

    def _obey(self) -> None:
        for order in self._orders():
            do = order.pop("do")
            if do == "finish":
                return
            answer = getattr(self, f"_do_{do}")(**order)
            self._control.sendall(json.dumps(answer).encode() + b"\n")

    def _orders(self) -> Iterator[dict[str, Any]]:
        buffer = b""
        while True:
            while b"\n" not in buffer:
                try:
                    data = self._control.recv(65536)
                except OSError:
                    # gevent's way to wake who waits on a socket that is shut down.
                    data = b""
                if not data:
                    return
                buffer += data
            line, buffer = buffer.split(b"\n", 1)
            yield json.loads(line)

    def _do_handlers(self, mix: dict[str, float]) -> None:
        self._mix = mix

    def _do_publish(self, on: bool) -> bool:
        """Go on, or pause. True when no publish is under way any more."""
        self._publishing = on
        deadline = time.monotonic() + LEAVE_SECONDS
        while not on and self._under_way and time.monotonic() < deadline:
            time.sleep(0.01)
        return not self._under_way

    def _do_churn(self, timeout: float) -> int:
        """Stop every Reader; others take their place."""
        for slot in self._slots:
            slot.stop(timeout)
        return sum(slot.ended for slot in self._slots)

    def _do_clock(self, jump: float) -> None:
        """The clock on the wall shows another time."""
        real, real_ns = self._wall_clock
        time.time = lambda: real() + jump
        time.time_ns = lambda: real_ns() + int(jump * 1e9)

    def _do_burst(self, count: int) -> None:
        """So many publishes by each Writer that nobody waits for: they stand in line at nsqd."""
        chance = random.Random(f"{self.seed}:burst {next(self._bursts)}")
        for writer in self._writers:
            for _ in range(count):
                self._publish_once(writer, "async", chance)

    def _do_fork(self) -> None:
        """A child that publishes with what it has inherited, while the parent goes on."""
        base = self._settings["base"] + next(self._forked) * 10_000_000
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                self._be_the_child(base)
                status = 0
            except BaseException as error:
                self.notes.note(journal.WRONG, f"in the child: {error!r}")
            finally:
                os._exit(status)
        _, status = os.waitpid(pid, 0)
        if status:
            self.notes.note(journal.WRONG, f"a forked child ended with {status}")

    def _be_the_child(self, base: int) -> None:
        # Greenlets of the parent are copied, and would publish here, too.
        self.finishing = True
        self.notes.note_only_mine()
        self._numbers = itertools.count(base)
        chance = random.Random(base)
        for writer in self._writers:
            for _ in range(5):
                self._publish_once(writer, "one", chance)
            writer.close()
        reader = self._slots[0].reader
        if reader is not None:
            with contextlib.suppress(ClosedError):
                reader.stats()
                raise AssertionError("a Reader works on in the child")

    def _do_crowd(self, count: int, seconds: float) -> dict[str, Any]:
        """Start so many Readers at once, let them work, stop them."""
        slot = Slot(self, "crowd")
        observer = Noting(self.notes)
        readers = [
            Reader(
                self.topic, "ch", Handler(self, slot), nsqd_tcp_addresses=self.nsqds,
                max_in_flight=3, msg_timeout=self.msg_timeout, max_attempts=0, observer=observer,
                **{**self.connection_options, "connect_timeout": 30.0, "heartbeat_interval": 5.0},
            )
            for _ in range(count)
        ]  # fmt: skip
        for reader in readers:
            reader.start(block=False)
        wanted = count * len(self.nsqds)
        deadline = time.monotonic() + 60.0
        while (up := sum(len(r.stats().connections) for r in readers)) < wanted:
            if time.monotonic() > deadline:
                self.notes.note(journal.WRONG, f"{up} of {wanted} connections came up")
                break
            time.sleep(0.05)
        time.sleep(seconds)
        observer.stopping = True
        for reader in readers:
            reader.stop(LEAVE_SECONDS)
        received = 0
        for reader in readers:
            result = reader.join(60.0)
            received += reader.stats().received
            if result is None or not result.clean:
                self.notes.note(journal.WRONG, f"one of the crowd stopped with {result}")
        return {"connections": up, "received": received}

    def _do_state(self) -> list[dict[str, Any]]:
        """Each Reader: its max_in_flight, and the RDY of each connection."""
        found = []
        for slot in self._slots:
            stats = slot.stats()
            if stats is None:
                # Who asks looks for RDY that is given out, and goes on waiting.
                found.append({"slot": slot.name, "max_in_flight": 0, "backoff": False, "rdy": {}})
                continue
            found.append(
                {
                    "slot": slot.name,
                    "max_in_flight": stats.max_in_flight,
                    "in_flight": stats.in_flight,
                    "backoff": stats.is_in_backoff,
                    "rdy": {c.address: c.rdy for c in stats.connections},
                }
            )
        return found

    def _do_memory(self) -> dict[str, int]:
        """Resident bytes, descriptors and threads."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {
            "bytes": pages * os.sysconf("SC_PAGE_SIZE"),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
        }


def main(argv: list[str]) -> None:
    settings = json.loads(argv[0])
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(levelname)s %(message)s")
    mutations.apply(settings["mutation"])
    control = socket.socket(fileno=int(argv[1]))
    with control:
        Client(settings, control).run()


if __name__ == "__main__":
    main(sys.argv[1:])
