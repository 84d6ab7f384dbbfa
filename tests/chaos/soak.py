"""The soak: millions of messages through one Reader and one Writer with faults on, in flat memory.

The client's process counts by itself, in bytes that are set aside at the start; the coordinator
cuts, stalls and drips between it and the one nsqd, and asks for its memory from time to time.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnsqsync import Message, Reader, Writer
from gnsqsync.errors import OutcomeUnknown, PublishError
from tests.support.faultproxy import DOWN, UP, FaultProxy, Trouble
from tests.support.servers import ROOT, Server

TOPIC, CHANNEL = "soak", "ch"
# Memory is measured against what it was after so many messages.
WARM = 1_000_000
MAY_GROW = 5 * 1024 * 1024
BATCH = 100
# So far the publisher may be ahead of the Reader.
AHEAD = 20_000
LOOK_EVERY = 0.5
# A connection that lived for five seconds is dialled again soon; after shorter lives the delays
# grow, and the soak would mostly wait.
FAULT_EVERY = 6.0
DRAIN_SECONDS = 120.0
_PROGRAMS = {"threads": "tests.chaos.soak", "gevent": "tests.chaos.patched_soak"}


class Soak:
    """The client: numbers from 0 on, each published once, each handling counted."""

    def __init__(self, nsqd: str, messages: int) -> None:
        self._messages = messages
        # Per number: how often it was handled, and whether nsqd said OK.
        self._handled = bytearray(messages)
        self._acknowledged = bytearray(messages)
        self._count = 0
        self._unknown = self._not_sent = 0
        options: dict[str, Any] = {"heartbeat_interval": 2.0}
        self._writer = Writer(nsqd, publish_timeout=20.0, **options)
        self._reader = Reader(
            TOPIC, CHANNEL, self._handle, nsqd_tcp_addresses=nsqd, max_in_flight=500,
            max_attempts=0, msg_timeout=5.0, **options,
        )  # fmt: skip
        self._publisher = threading.Thread(target=self._publish, name="publisher", daemon=True)
        self._published = 0

    def _handle(self, message: Message) -> None:
        number = int(message.body)
        if self._handled[number] < 255:
            self._handled[number] += 1
        if self._handled[number] == 1:
            self._count += 1

    def _publish(self) -> None:
        while self._published < self._messages:
            while self._published - self._count > AHEAD + self._unknown + self._not_sent:
                time.sleep(0.005)
            begin = self._published
            end = min(begin + BATCH, self._messages)
            bodies = [b"%012d" % number for number in range(begin, end)]
            try:
                self._writer.publish_many(TOPIC, bodies)
                self._acknowledged[begin:end] = b"\1" * (end - begin)
            except OutcomeUnknown:
                self._unknown += end - begin
            except PublishError:
                self._not_sent += end - begin
            self._published = end

    def run(self, control: socket.socket) -> None:
        """Answer each line of the coordinator with how far it is; end with the socket."""
        self._reader.start(block=False)
        self._publisher.start()
        while control.recv(1):
            control.sendall(json.dumps(self._state()).encode() + b"\n")
        self._reader.stop()
        self._reader.join()
        self._writer.close()
        self._publisher.join()

    def _state(self) -> dict[str, int]:
        done = self._published == self._messages
        state = {
            "published": self._published,
            "handled": self._count,
            "unknown": self._unknown,
            "not_sent": self._not_sent,
            "bytes": int(Path("/proc/self/statm").read_text().split()[1])
            * os.sysconf("SC_PAGE_SIZE"),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "threads": len(os.listdir("/proc/self/task")),
        }
        if done:
            state["lost"] = self._missing()
            state["repeated"] = self._messages - self._handled.count(0) - self._handled.count(1)
        return state

    def _missing(self) -> int:
        """Acknowledged and not handled. By slices, so that nothing large is made."""
        lost = 0
        for begin in range(0, self._messages, 4096):
            handled = self._handled[begin : begin + 4096]
            if 0 in handled:
                told = self._acknowledged[begin : begin + 4096]
                lost += sum(t and not h for t, h in zip(told, handled, strict=True))
        return lost


@dataclass
class Outcome:
    """How the soak of one world went."""

    world: str
    messages: int
    seconds: float = 0.0
    faults: int = 0
    last: dict[str, int] = field(default_factory=dict)
    # After WARM messages, and then the most.
    warm: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)

    def note(self, state: dict[str, int]) -> None:
        self.last = state
        if state["published"] < min(WARM, self.messages // 2):
            return
        if not self.warm:
            self.warm = state
        for key in ("bytes", "descriptors", "threads"):
            self.most[key] = max(self.most.get(key, 0), state[key])

    @property
    def grown(self) -> int:
        """Bytes at the end over those after WARM messages."""
        return self.last["bytes"] - self.warm["bytes"]

    @property
    def is_right(self) -> bool:
        # A connection that is being replaced has its successor beside it for a moment.
        steady = all(self.most[key] <= self.warm[key] + 3 for key in ("descriptors", "threads"))
        return self.last.get("lost") == 0 and self.grown < MAY_GROW and steady

    def __str__(self) -> str:
        last = self.last
        return (
            f"{self.world}: {self.messages:,} messages in {self.seconds:.0f} s,"
            f" {self.faults} faults: {last.get('lost', '?')} lost, {last['unknown']:,} unknown,"
            f" {last['not_sent']:,} not sent, {last.get('repeated', '?')} repeated;"
            f" memory {self.warm['bytes'] / 2**20:.1f} MiB after {self.warm['published']:,} and"
            f" {last['bytes'] / 2**20:.1f} MiB at the end; descriptors {self.warm['descriptors']}"
            f" then at most {self.most['descriptors']}, threads {self.warm['threads']} then at most"
            f" {self.most['threads']}: {'right' if self.is_right else 'WRONG'}"
        )


def _hurt(proxy: FaultProxy, chance: random.Random) -> None:
    """One fault on each connection that lives."""
    direction = chance.choice((UP, DOWN))
    kind = chance.choice(("cut", "cut", "reset", "stall", "drip"))
    amount = {"stall": chance.uniform(0.1, 1.0), "drip": 300.0}.get(kind, 0.0)
    proxy.order(Trouble(direction, kind, chance.randrange(200_000), amount))


def soak(messages: int, seed: object, world: str, say: Any = print) -> Outcome:
    """One soak, with an nsqd and a client of its own."""
    outcome = Outcome(world, messages)
    chance = random.Random(f"{seed}:{world}")
    server = Server("real", "nsqd", ["-mem-queue-size=100000"])
    try:
        server.start()
        with FaultProxy(server.tcp_address, seed=seed) as proxy:
            ours, theirs = socket.socketpair()
            with ours:
                with theirs:
                    process = subprocess.Popen(
                        [sys.executable, "-m", _PROGRAMS[world], proxy.text, str(messages),
                         str(theirs.fileno())],
                        pass_fds=[theirs.fileno()],
                        cwd=ROOT,
                        env={**os.environ, "PYTHONPATH": str(ROOT)},
                    )  # fmt: skip
                try:
                    _follow(ours, proxy, outcome, chance, say)
                    ours.shutdown(socket.SHUT_WR)
                    process.wait(60)
                finally:
                    process.kill()
                    process.wait()
    finally:
        server.discard()
    return outcome


def _follow(
    control: socket.socket, proxy: FaultProxy, outcome: Outcome, chance: random.Random, say: Any
) -> None:
    began = time.monotonic()
    control.settimeout(60.0)
    lines = control.makefile("rb")
    ended_at: float | None = None
    shown = 0
    hurt_at = began
    with lines:
        while True:
            time.sleep(LOOK_EVERY)
            control.sendall(b"?")
            line = lines.readline()
            if not line:
                raise RuntimeError(f"the soak in {outcome.world} ended early")
            outcome.note(json.loads(line))
            outcome.seconds = time.monotonic() - began
            state = outcome.last
            if state["published"] - shown >= outcome.messages / 10:
                shown = state["published"]
                say(f"{outcome.world}: {shown:,} published, {state['bytes'] / 2**20:.1f} MiB")
            if "lost" not in state:
                if not outcome.faults or time.monotonic() - hurt_at >= FAULT_EVERY:
                    hurt_at = time.monotonic()
                    _hurt(proxy, chance)
                    outcome.faults += 1
                continue
            ended_at = ended_at or time.monotonic()
            if not state["lost"] or time.monotonic() - ended_at > DRAIN_SECONDS:
                return


def main(messages: int, seed: int, worlds: Sequence[str]) -> int:
    """The exit status: 1 when something was lost or grew."""
    outcomes = [soak(messages, seed, world) for world in worlds]
    for outcome in outcomes:
        print(outcome)
    return 0 if all(outcome.is_right for outcome in outcomes) else 1


def client(argv: list[str]) -> None:
    nsqd, messages, descriptor = argv
    with socket.socket(fileno=int(descriptor)) as control:
        Soak(nsqd, int(messages)).run(control)


if __name__ == "__main__":
    client(sys.argv[1:])
