"""For scripts that fork: a child whose failure the parent sees, and who is connected to an nsqd.

Knows nothing of how the scripts are run. Its functions are what spawned children import.
"""

from __future__ import annotations

import ctypes
import json
import os
import posix
import sys
import traceback
import urllib.request
from collections.abc import Callable
from typing import Any


def fork_without_hooks() -> int:
    """fork(2) as uWSGI calls it: Python is not told, so that no hook of os.fork runs."""
    pid: int = ctypes.PyDLL(None).fork()
    return pid


class Child:
    """Runs ``function`` in the child of a fork; ``check`` fails when the function failed.

    It tells by a pipe, as gevent's os.waitpid() can miss a child that ends at once.
    """

    def __init__(self, function: Callable[[], object], fork: Callable[[], int] = os.fork) -> None:
        sys.stdout.flush()
        self._pipe, end = os.pipe()
        self._pid = fork()
        if self._pid:
            os.close(end)
            return
        word = b"bad"
        try:
            function()
            word = b"good"
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.write(end, word)
            os._exit(0)

    def check(self) -> None:
        """Wait for its end. The read blocks everything: nobody else may have to run meanwhile."""
        assert os.read(self._pipe, 10) == b"good", "the child failed"
        os.close(self._pipe)
        try:
            posix.waitpid(self._pid, 0)  # never gevent's
        except ChildProcessError:
            pass  # gevent's child watcher was first


def in_child(function: Callable[[], object]) -> None:
    Child(function).check()


class Nsqd:
    """What an nsqd's /stats say, asked over a connection of its own each time."""

    def __init__(self, http: str) -> None:
        self._http = http

    def _stats(self, query: str = "") -> Any:
        with urllib.request.urlopen(f"{self._http}/stats?format=json{query}", timeout=10) as answer:
            return json.load(answer)

    def publishers(self, client_id: str) -> dict[str, int]:
        """The connections that published under this client_id: their far end, and since when."""
        return {
            client["remote_address"]: client["connect_ts"]
            for client in self._stats()["producers"] or ()
            if client["client_id"] == client_id
        }

    def consumers(self, topic: str) -> dict[str, int]:
        """The connections that are subscribed to the topic: their far end, and since when."""
        return {
            client["remote_address"]: client["connect_ts"]
            for channel in self.topic(topic)["channels"]
            for client in channel["clients"] or ()
        }

    def topic(self, topic: str) -> Any:
        """What is told of it, if there is such a topic."""
        return next(iter(self._stats(f"&topic={topic}")["topics"] or ()), None)

    def count(self, topic: str) -> int:
        """How many messages were ever published to the topic."""
        found = self.topic(topic)
        count: int = found["message_count"] if found else 0
        return count


def publish(writer: Any, topic: str) -> None:
    """What a child of multiprocessing runs."""
    writer.publish(topic, b"from the child")
    assert writer.is_connected
    print("published", flush=True)


def publish_inherited(topic: str) -> None:
    """The same, with a Writer that the child has by the fork."""
    publish(inherited[0], topic)


inherited: list[Any] = []
