"""Many nsqds and one nsqlookupd, simulated by one fast program (``tests/support/manynsqs``).

They measure a client against hundreds of nsqds on one machine. They generate messages and count the
answers. ``python -m tests.support.simulated --nsqds 200`` prints the addresses and runs until
Enter.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.realnsq import Unavailable, cache_folder, go_build

SOURCE = Path(__file__).parent / "manynsqs"


class ManyNsqds:
    """The running program, a context manager.

    ``size``: bytes of a body. ``silent``: number of nsqds, the last ones, that accept HTTP and
    never answer. ``delay``: seconds of each answer over HTTP. Raises Unavailable without Go.
    """

    def __init__(self, nsqds: int, *, size: int = 100, silent: int = 0, delay: float = 0.0) -> None:
        self._command = [
            str(program()),
            f"-nsqds={nsqds}",
            f"-size={size}",
            f"-silent={silent}",
            f"-delay={round(delay * 1000)}ms",
        ]
        self.tcp_addresses: list[str] = []
        self.http_addresses: list[str] = []
        self.lookupd: str = ""

    def __enter__(self) -> ManyNsqds:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        first = self._process.stdout.readline()
        if not first:
            self.__exit__(None, None, None)
            raise RuntimeError(f"{' '.join(self._command)} ended: {self._process.returncode}")
        addresses = json.loads(first)
        self.tcp_addresses = addresses["tcp"]
        self.http_addresses = addresses["http"]
        self.lookupd = addresses["lookupd"]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def create(self, topic: str, channel: str = "ch") -> None:
        """Make topic and channel on every nsqd, and in nsqlookupd."""
        self._ask("/topic/create", topic=topic)
        self._ask("/channel/create", topic=topic, channel=channel)

    def fill(self, topic: str, messages: int) -> None:
        """Add ``messages`` messages to each channel of the topic, on each nsqd."""
        self._ask("/sim/fill", topic=topic, messages=messages)

    def feed(self, topic: str, rate: float) -> None:
        """Generate ``rate`` messages a second from now on, all nsqds together. 0 ends it."""
        self._ask("/sim/rate", topic=topic, rate=rate)

    def counts(self) -> dict[str, int]:
        """Return counts since the start.

        They are delivered, finished, requeued, refused (answers to messages that were not in
        flight), published, connections, subscriptions, requests (HTTP, at nsqds), waiting (and in
        flight).
        """
        found: dict[str, int] = json.loads(self._ask("/sim/counts"))
        return found

    def _ask(self, path: str, **params: Any) -> bytes:
        url = f"http://{self.lookupd}{path}?{urllib.parse.urlencode(params)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            data: bytes = answer.read()
            return data


def program() -> Path:
    """Return the program, built once for each state of its source. Unavailable without Go."""
    files = sorted(SOURCE.iterdir())
    state = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    target = cache_folder().with_name(f"manynsqs-{state}")
    if target.exists():
        return target
    go = shutil.which("go")
    if go is None:
        raise Unavailable("no Go to build tests/support/manynsqs")
    target.parent.mkdir(parents=True, exist_ok=True)
    # If two builds run at a time, the second one replaces the program by the same program.
    scratch = target.with_name(f"{target.name}-{os.getpid()}")
    go_build(go, "tests/support/manynsqs", SOURCE, scratch, ".")
    scratch.rename(target)
    return target


def main(argv: Sequence[str] | None = None) -> int:
    """Run until Enter. Return the exit status: 0, or 2 if the program cannot run."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.simulated", description=__doc__)
    parser.add_argument("--nsqds", type=int, default=100)
    parser.add_argument("--size", type=int, default=100, help="bytes of a body")
    parser.add_argument("--topic", action="append", default=[], help="made on every nsqd")
    parser.add_argument("--channel", default="ch")
    parser.add_argument("--messages", type=int, default=0, help="for each topic on each nsqd")
    parser.add_argument("--rate", type=float, default=0.0, help="messages a second of each topic")
    chosen = parser.parse_args(argv)
    try:
        many = ManyNsqds(chosen.nsqds, size=chosen.size)
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 2
    with many:
        for topic in chosen.topic:
            many.create(topic, chosen.channel)
            many.fill(topic, chosen.messages)
            many.feed(topic, chosen.rate)
        print("nsqlookupd HTTP:", many.lookupd)
        print("nsqd TCP:", ",".join(many.tcp_addresses))
        print("nsqd HTTP:", ",".join(many.http_addresses))
        print("Enter ends it.")
        sys.stdin.readline()
        print(json.dumps(many.counts(), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
