"""Client processes as the coordinator sees them: started, given orders, ended, counted.

Knows the command line and the socket of tests.chaos.client; reads no journal.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.chaos.cluster import HEARTBEAT, MSG_TIMEOUT, Cluster
from tests.support.servers import ROOT

WORLDS = ("threads", "gevent")
_PROGRAMS = {"threads": "tests.chaos.client", "gevent": "tests.chaos.patched_client"}
ANSWER_SECONDS = 120.0
END_SECONDS = 120.0
LAST_WORDS_SECONDS = 10.0
# Numbers of one process; those of its forked children are among them.
_NUMBERS_EACH = 1_000_000_000
_bases = itertools.count(1)


class ClientFailed(Exception):
    """A client process ended, or did not answer."""


class ClientProcess:
    """One running tests.chaos.client."""

    def __init__(
        self,
        cluster: Cluster,
        world: str,
        topic: str,
        folder: Path,
        *,
        seed: str,
        rate: float,
        publishers: int,
        kinds: dict[str, float],
        mutation: str | None = None,
    ) -> None:
        self.world = world
        number = next(_bases)
        self.journal = folder / f"{topic}-{number}.journal"
        self.killed_at: float | None = None
        self._log = folder / f"{topic}-{number}.log"
        settings = {
            "world": world,
            "journal": str(self.journal),
            "seed": f"{seed}:{world}:{number}",
            "base": number * _NUMBERS_EACH,
            "topic": topic,
            "nsqds": [nsqd.address for nsqd in cluster.nsqds],
            "lookupds": cluster.lookup_urls,
            "address_map": cluster.address_map,
            "heartbeat": HEARTBEAT,
            "msg_timeout": MSG_TIMEOUT,
            "publishers": publishers,
            "rate": rate,
            "kinds": kinds,
            "mutation": mutation,
        }
        self._control, theirs = socket.socketpair()
        with theirs, open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    _PROGRAMS[world],
                    json.dumps(settings),
                    str(theirs.fileno()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def ask(self, do: str, **order: Any) -> Any:
        """Give an order and return the answer; ClientFailed when there is none."""
        self.tell(do, **order)
        return self.answer()

    def tell(self, do: str, **order: Any) -> None:
        """Give an order whose answer is taken later."""
        try:
            self._control.sendall(json.dumps({"do": do, **order}).encode() + b"\n")
        except OSError as error:
            raise self._failed(f"takes no orders: {error}") from error

    def answer(self) -> Any:
        self._control.settimeout(ANSWER_SECONDS)
        data = b""
        while not data.endswith(b"\n"):
            try:
                part = self._control.recv(65536)
            except OSError as error:
                raise self._failed(f"does not answer: {error}") from error
            if not part:
                raise self._failed("ended")
            data += part
        return json.loads(data)

    def finish(self) -> None:
        """Have it close everything and end; ClientFailed when it ends otherwise than with 0."""
        with contextlib.suppress(ClientFailed):
            self.tell("finish")
        self._end()

    def terminate(self) -> None:
        """SIGTERM, which is an order to finish."""
        self._process.send_signal(signal.SIGTERM)
        self._end()

    def _end(self) -> None:
        try:
            status = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)
            raise self._failed("does not end") from None
        self._control.close()
        if status:
            raise self._failed(f"ended with {status}")

    def kill(self) -> None:
        """SIGKILL. What it did last is in doubt."""
        self._process.kill()
        self._process.wait()
        self.killed_at = time.monotonic()
        self._control.close()

    def discard(self) -> None:
        """End it in any state."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._control.close()

    def _failed(self, what: str) -> ClientFailed:
        # One that fell may still be writing why.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LAST_WORDS_SECONDS)
        lines = self._log.read_text(errors="replace").splitlines()
        loud = [line for line in lines if " INFO " not in line and " WARNING " not in line]
        return ClientFailed(f"the client in {self.world} {what}\n" + "\n".join(loud[-40:]))
