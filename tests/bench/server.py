"""The nsqd under the benchmark: started once, fed by a raw socket, topics made and deleted.

Knows nothing of rows and clients.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import trustme

from tests.bench.runners import rawnsq

START_TIMEOUT = 15.0
SETTLE_TIMEOUT = 60.0
FEED_BATCH = 500

# execv after setting the affinity: the Go runtime counts its CPUs once, at start.
_PINNED = (
    "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])});"
    " os.execv(sys.argv[2], sys.argv[2:])"
)


def pinned(cpu: int, command: Sequence[str]) -> list[str]:
    """``command`` on one CPU only."""
    return [sys.executable, "-c", _PINNED, str(cpu), *command]


class Server:
    """A real nsqd on free ports with its data in a temporary folder; a context manager."""

    def __init__(self, program: Path, cpu: int | None) -> None:
        self.program = program
        self.tcp_address = ""
        self._http_address = ""
        self._cpu = cpu
        self._log: deque[str] = deque(maxlen=50)
        self._listening = threading.Event()
        self._data = tempfile.TemporaryDirectory(prefix="nsqd-bench-")
        folder = Path(self._data.name)
        self.ca_file = str(folder / "ca.pem")
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1")
        authority.cert_pem.write_to_path(self.ca_file)
        certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
        certificate.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))

    def __enter__(self) -> Server:
        command = [
            str(self.program),
            "--tcp-address=127.0.0.1:0",
            "--http-address=127.0.0.1:0",
            "--https-address=127.0.0.1:0",
            f"--data-path={self._data.name}",
            "--mem-queue-size=1000000",
            "--max-rdy-count=2500",
            f"--tls-cert={self._data.name}/cert.pem",
            f"--tls-key={self._data.name}/key.pem",
        ]
        if self._cpu is not None:
            command = pinned(self._cpu, command)
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self._listening.wait(START_TIMEOUT)
        if not (self.tcp_address and self._http_address):
            log = self._stop()
            raise RuntimeError(f"{self.program} did not start:\n{log}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def create(self, topic: str, channel: str = "") -> None:
        self._post("/topic/create", topic=topic)
        if channel:
            self._post("/channel/create", topic=topic, channel=channel)

    def delete(self, topic: str) -> None:
        self._post("/topic/delete", topic=topic)

    def feed(self, topic: str, channel: str, messages: int, body: bytes) -> None:
        """Put ``messages`` into the channel by MPUB and wait until all have got there."""
        with rawnsq.connect(_host_port(self.tcp_address)) as sock:
            # nsqd takes 5 MiB in an MPUB.
            batch = max(1, min(FEED_BATCH, 4_000_000 // len(body)))
            command = rawnsq.mpub(topic, [body] * batch)
            for _ in range(messages // batch):
                sock.sendall(command)
                rawnsq.read_ok(sock)
            if messages % batch:
                sock.sendall(rawnsq.mpub(topic, [body] * (messages % batch)))
                rawnsq.read_ok(sock)
        give_up = time.monotonic() + SETTLE_TIMEOUT
        # nsqd has no event for this: its topic hands over to the channel in a loop of its own.
        while self._topic(topic)["channels"][0]["depth"] < messages:
            if time.monotonic() > give_up:
                raise RuntimeError(f"nsqd did not move {messages} messages to {topic}/{channel}")
            time.sleep(0.02)

    def wait_for_consumer(self, topic: str, child: subprocess.Popen[str]) -> None:
        """Until the channel has one; RuntimeError when the consumer has ended before."""
        give_up = time.monotonic() + SETTLE_TIMEOUT
        # nsqd has no event for this either.
        while not self._topic(topic)["channels"][0]["client_count"]:
            if child.poll() is not None:
                raise RuntimeError("the consumer ended before it subscribed")
            if time.monotonic() > give_up:
                raise RuntimeError(f"nobody subscribed to {topic}")
            time.sleep(0.02)

    def published(self, topic: str) -> int:
        """How many messages the topic has received."""
        return int(self._topic(topic)["message_count"])

    def left(self, topic: str) -> int:
        """How many messages of its only channel are not finished."""
        (channel,) = self._topic(topic)["channels"]
        return int(channel["depth"]) + int(channel["in_flight_count"])

    def _topic(self, topic: str) -> dict[str, Any]:
        query = urllib.parse.urlencode({"format": "json", "topic": topic})
        url = f"http://{self._http_address}/stats?{query}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            topics: list[dict[str, Any]] = json.load(answer)["topics"]
        return topics[0]

    def _post(self, path: str, **query: str) -> None:
        url = f"http://{self._http_address}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, data=b"", timeout=10):
            pass

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log.append(line)
            found = re.search(r"(TCP|HTTP): listening on (\S+)", line)
            if found is not None:
                if found[1] == "TCP":
                    self.tcp_address = found[2]
                else:
                    self._http_address = found[2]
            if self.tcp_address and self._http_address:
                self._listening.set()
        self._listening.set()

    def _stop(self) -> str:
        # Deleted topics leave nothing to keep, and a clean stop would write the others to disk.
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._data.cleanup()
        return "".join(self._log)


def _host_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def server_version(program: Path) -> str:
    """For example ``nsqd v1.3.0 (built w/go1.22.1)``."""
    shown = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True)
    return shown.stdout.strip()


def find(named: str | None) -> Path:
    """The nsqd program: as named, or the real one that tests/support finds or builds.

    Raises FileNotFoundError with the reason when there is none.
    """
    if named is not None:
        if not os.access(named, os.X_OK):
            raise FileNotFoundError(f"{named} is not a program")
        return Path(named).resolve()
    from tests.support import realnsq

    try:
        return realnsq.find_or_build() / "nsqd"
    except realnsq.Unavailable as error:
        raise FileNotFoundError(str(error)) from None
