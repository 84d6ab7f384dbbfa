"""Parts of scripts that fork: a child whose failure the parent sees, and an nsqd's clients.

Does not know how the scripts are run. Spawned children import its functions.
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

from tests.support.waiting import LIMIT


def fork_without_hooks() -> int:
    """Call fork(2) as uWSGI does: Python does not know, so no hook of os.fork runs."""
    pid: int = ctypes.PyDLL(None).fork()
    return pid


class Child:
    """A forked child that runs ``function``. ``check`` fails if the function failed.

    The result comes through a pipe, because gevent's os.waitpid() can miss a child that ends at
    once.
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
        """Wait for the child's end. The read blocks all greenlets of this process."""
        assert os.read(self._pipe, 10) == b"good", "the child failed"
        os.close(self._pipe)
        try:
            posix.waitpid(self._pid, 0)  # os.waitpid may be gevent's.
        except ChildProcessError:
            pass  # gevent's child watcher has reaped the child.


def in_child(function: Callable[[], object]) -> None:
    Child(function).check()


class Nsqd:
    """The /stats of an nsqd. Each request has a connection of its own."""

    def __init__(self, http: str) -> None:
        self._http = http

    def _stats(self, query: str = "") -> Any:
        with urllib.request.urlopen(
            f"{self._http}/stats?format=json{query}", timeout=LIMIT
        ) as answer:
            return json.load(answer)

    def publishers(self, client_id: str) -> dict[str, int]:
        """Return the connections that published as this client_id: far end -> connect time."""
        return {
            client["remote_address"]: client["connect_ts"]
            for client in self._stats()["producers"] or ()
            if client["client_id"] == client_id
        }

    def consumers(self, topic: str) -> dict[str, int]:
        """Return the connections that are subscribed to the topic: far end -> connect time."""
        return {
            client["remote_address"]: client["connect_ts"]
            for channel in self.topic(topic)["channels"]
            for client in channel["clients"] or ()
        }

    def topic(self, topic: str) -> Any:
        """Return the figures of the topic, or None if it does not exist."""
        return next(iter(self._stats(f"&topic={topic}")["topics"] or ()), None)

    def count(self, topic: str) -> int:
        """Return the number of messages that were ever published to the topic."""
        found = self.topic(topic)
        count: int = found["message_count"] if found else 0
        return count


def publish(writer: Any, topic: str) -> None:
    """Publish a message. A child of multiprocessing runs this."""
    writer.publish(topic, b"from the child")
    assert writer.is_connected
    print("published", flush=True)


def publish_inherited(topic: str) -> None:
    """Publish a message with a Writer that the child inherited by the fork."""
    publish(inherited[0], topic)


inherited: list[Any] = []
