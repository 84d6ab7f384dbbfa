"""The consumers beside each other: how each is started with an order."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.bench import clients, environments
from tests.bench.clients import HERE, REPOSITORY, Client
from tests.bench.runners.waiting import Order

NAMES = ("before", "ours", "ours-gevent", "go-nsq", "gnsq")
DEFAULT = ("ours", "go-nsq", "gnsq")
# Peers that have no consumer of several topics with one slot.
WITHOUT_GROUPS = ("go-nsq", "gnsq")


class Peer:
    """A client by its name, its command, and the environment of its processes."""

    def __init__(self, name: str, command: Sequence[str], package: Path | None) -> None:
        self.name = name
        self._command = list(command)
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        if package is not None:
            self._environment["PYTHONPATH"] = str(package)
        self._environment["WAITS_RUNTIME"] = "gevent" if name == "ours-gevent" else "threads"

    def start(self, order: Order, errors: Path) -> subprocess.Popen[bytes]:
        """Start a consumer, whose standard error goes to ``errors``."""
        with errors.open("ab") as sink:
            return subprocess.Popen(
                [*self._command, json.dumps(asdict(order))],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
            )


def make(names: Sequence[str], package: Path | None, say: Callable[[str], None]) -> list[Peer]:
    """Return the peers by these names, made ready; a peer that cannot be made ready is told.

    ``package``: the folder from which ``before`` imports gnsqsync.
    """
    found = []
    for name in names:
        try:
            if name == "go-nsq":
                client = Client(name, "gowaits", go=("gowaits",))
                found.append(Peer(name, environments.command_of(client, say), None))
            elif name == "gnsq":
                (client,) = clients.select([name])
                python, _ = environments.command_of(client, say)
                script = str(HERE / "runners" / "waits_gnsq.py")
                found.append(Peer(name, [python, script], None))
            else:
                client = Client(name, "waits_ours.py")
                tree = package if name == "before" else REPOSITORY
                found.append(Peer(name, environments.command_of(client, say), tree))
        except environments.Unavailable as error:
            say(str(error))
    return found
