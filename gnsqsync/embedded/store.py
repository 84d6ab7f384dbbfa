"""The folder of --data-path: its lock, nsqd.dat, the disk queues, and a clean stop.

nsqd.dat has names and paused flags. The files have nsqd's format (docs/protocol/end#files), so that
the embedded nsqd and nsqd can take over each other's folder. Knows files; the broker has the
messages.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnsqsync import durable
from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.names import valid_name
from gnsqsync.daemon.options import OptionsError, StartError
from gnsqsync.embedded.broker import Broker
from gnsqsync.embedded.channel import Channel
from gnsqsync.embedded.disk.files import FolderFiles, reason
from gnsqsync.embedded.disk.queue import DiskQueue, Limits
from gnsqsync.embedded.disk.records import SHORTEST
from gnsqsync.embedded.identify import NSQ_VERSION
from gnsqsync.embedded.options import NsqdOptions

__all__ = ["Store"]

# Temporary names of nsqd.dat: those of nsqd and of earlier versions, and the present ones.
_LEFTOVER = re.compile(r"nsqd\.dat\.[0-9]+\.tmp|" + re.escape(durable.TEMPORARY) + "[0-9a-f]{32}")

_HOW_TO_GO_ON = (
    "the file is empty or damaged, as a power cut may leave it: restore it from a copy, or move it"
    " away and create each topic and channel again, which then has its messages on disk"
)


class Store:
    """A data folder, which is locked while it is open.

    ``open_queue`` opens disk queues for the broker. ``save`` adds the messages in memory to them at
    a clean stop. nsqd.dat is replaced when names or paused flags change.
    """

    def __init__(
        self, options: NsqdOptions, log: Log, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = Path(options.data_path)
        self._files = FolderFiles(options.data_path)
        self._log = log
        self._now = now
        self._limits = Limits(
            max_bytes_per_file=options.max_bytes_per_file,
            sync_every=options.sync_every,
            sync_timeout=options.sync_timeout,
            longest=SHORTEST + options.max_msg_size,
        )
        self._lock = -1

    def open(self) -> None:
        """Lock the folder. OptionsError if it is missing or another nsqd has the lock."""
        folder = self._folder
        try:
            self._lock = os.open(folder, os.O_RDONLY)
        except OSError as error:
            why = f"open {folder}: {reason(error)}"
            raise OptionsError(f"failed to lock data-path: {why}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise OptionsError(
                f"failed to lock data-path: cannot flock directory {folder} - {reason(error)}"
                " (possibly in use by another instance of nsqd)"
            ) from None
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Remove the temporary files of an nsqd that was killed while it wrote nsqd.dat."""
        for name in os.listdir(self._folder):
            if _LEFTOVER.fullmatch(name):
                with contextlib.suppress(OSError):  # If it is read-only, the first write tells.
                    os.unlink(self._folder / name)

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # -- nsqd.dat --------------------------------------------------------------------------------

    def save_names(self, broker: Broker, run: Callable[[Callable[[], None]], None]) -> None:
        """Replace nsqd.dat, or log the error. ``run`` calls the function that writes."""
        try:
            run(self._names_of(broker))
        except OSError as error:
            self._log.error("failed to persist metadata - %s", error)

    def save_first_names(self, broker: Broker) -> None:
        """Replace nsqd.dat at the start. StartError if the folder is not writable."""
        try:
            self._names_of(broker)()
        except OSError as error:
            why = f"open {self._folder / 'nsqd.dat'}: {reason(error)}"
            raise StartError(f"failed to persist metadata - {why}") from None

    def _names_of(self, broker: Broker) -> Callable[[], None]:
        """Return the function that writes the present names and paused flags."""
        topics = [
            {
                "name": topic.name,
                "paused": topic.paused,
                "channels": [
                    {"name": channel.name, "paused": channel.paused}
                    for channel in topic.channels.values()
                    if not channel.ephemeral
                ],
            }
            for topic in broker.topics.values()
            if not topic.ephemeral
        ]
        text = json.dumps({"topics": topics, "version": NSQ_VERSION}, separators=(",", ":"))
        path = str(self._folder / "nsqd.dat")
        return lambda: durable.write(path, text.encode(), 0o600)

    def load(self, broker: Broker) -> None:
        """Create the topics and channels of nsqd.dat, with messages. StartError if unreadable."""
        path = self._folder / "nsqd.dat"
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            call = "read" if isinstance(error, IsADirectoryError) else "open"
            why = f"failed to read metadata from {path} - {call} {path}: {reason(error)}"
            raise StartError(f"failed to load metadata - {why}") from None
        # The whole file is checked before the first topic is created.
        try:
            if not content.strip(b"\0"):
                raise ValueError("unexpected end of JSON input")
            metadata = _object(json.loads(content), "the file")
            topics = [_SavedTopic(entry) for entry in _list(metadata, "topics")]
        except (ValueError, RecursionError) as error:
            why = f"failed to parse metadata in {path} - {error}"
            raise StartError(f"failed to load metadata - {why}; {_HOW_TO_GO_ON}") from None
        for topic in topics:
            self._load_topic(broker, topic)

    def _load_topic(self, broker: Broker, saved: _SavedTopic) -> None:
        if not saved.is_valid:
            self._log.warning("skipping creation of invalid topic %s", saved.name)
            return
        topic = broker.topic(saved.name)
        # A paused topic copies no message before all of its channels exist.
        topic.pause(True)
        for entry in saved.channels:
            if not entry.is_valid:
                self._log.warning("skipping creation of invalid channel %s", entry.name)
                continue
            topic.channel(entry.name).pause(entry.paused)
        topic.pause(saved.paused)

    # -- queues ----------------------------------------------------------------------------------

    def open_queue(self, name: str) -> DiskQueue | None:
        """Open the queue of a topic or of a TOPIC:CHANNEL, with the messages on disk.

        Return None if the files cannot be read; then the queue is in memory only.
        """
        try:
            return DiskQueue(name, self._files, self._limits, self._now, self._log)
        except OSError as error:
            path = error.filename or self._folder
            self._log.error("DISKQUEUE(%s) cannot be used - %s: %s", name, path, reason(error))
            return None

    def save(self, broker: Broker) -> None:
        """Write nsqd.dat and the messages in memory, except those of ephemeral queues."""
        self.save_names(broker, lambda write: write())
        for topic in broker.topics.values():
            for channel in topic.channels.values():
                if channel.backlog is not None:
                    self._save_channel(channel)
            if topic.backlog is not None:
                if topic.queue:
                    self._log.info(
                        "TOPIC(%s): flushing %d memory messages to backend",
                        topic.name,
                        len(topic.queue),
                    )
                topic.save(topic.queue)

    def _save_channel(self, channel: Channel) -> None:
        counts = (len(channel.queue), len(channel.in_flight), len(channel.deferred))
        if any(counts):
            self._log.info(
                "CHANNEL(%s): flushing %d memory %d in-flight %d deferred messages to backend",
                channel.name,
                *counts,
            )
        channel.save(channel.unsaved())


class _Saved:
    """A topic or channel of nsqd.dat. A missing or null value is empty or False, as in Go."""

    def __init__(self, entry: Any, kind: str = "channel") -> None:
        found = _object(entry, f"a {kind}")
        name, paused = found.get("name"), found.get("paused")
        self.name: str = "" if name is None else name
        self.paused: bool = False if paused is None else paused
        if not isinstance(self.name, str) or not isinstance(self.paused, bool):
            raise ValueError(f"name or paused flag of a {kind} has a wrong type")

    @property
    def is_valid(self) -> bool:
        # A lone surrogate from a \u escape cannot be encoded. It becomes "?", invalid, too.
        return valid_name(self.name.encode("utf-8", "replace"))


class _SavedTopic(_Saved):
    def __init__(self, entry: Any) -> None:
        super().__init__(entry, "topic")
        self.channels = [_Saved(channel) for channel in _list(entry or {}, "channels")]


def _object(value: Any, what: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object")
    return value


def _list(entry: dict[str, Any], key: str) -> list[Any]:
    value = entry.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{key} is not an array")
    return value
