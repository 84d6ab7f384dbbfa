"""--data-path: names and paused flags in nsqd.dat, and the queues over a clean stop.

The files have nsqd's own format (docs/protocol/end#files), so that either nsqd can take over a
folder of the other. Knows files; the broker has the messages.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from gnsqsync.embedded.broker import Broker
from gnsqsync.embedded.channel import QueuedMessage
from gnsqsync.embedded.golog import Log
from gnsqsync.embedded.identify import NSQ_VERSION
from gnsqsync.embedded.names import is_ephemeral, valid_name
from gnsqsync.embedded.options import OptionsError, StartError

__all__ = ["Store"]

# size, timestamp, attempts, id
_RECORD = struct.Struct(">iqH16s")
_HEAD_SIZE = _RECORD.size - 4


class Store:
    """One data folder, locked while it is open.

    While the server runs only nsqd.dat is written: messages are in memory, and ``save`` writes
    them at a clean stop. ``load`` removes the queue files that it has read, so what a killed
    server held is lost, as it is from nsqd's memory queue. Nothing is fsynced: files outlive the
    process, not a power cut.
    """

    def __init__(self, folder: str, log: Log, max_bytes_per_file: int) -> None:
        self._folder = Path(folder)
        self._log = log
        self._max_bytes_per_file = max_bytes_per_file
        self._lock = -1

    def open(self) -> None:
        """Take the lock; OptionsError when the folder is missing or another nsqd has it."""
        folder = self._folder
        try:
            self._lock = os.open(folder, os.O_RDONLY)
        except OSError as error:
            reason = f"open {folder}: {_reason(error)}"
            raise OptionsError(f"failed to lock data-path: {reason}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise OptionsError(
                f"failed to lock data-path: cannot flock directory {folder} - {_reason(error)}"
                " (possibly in use by another instance of nsqd)"
            ) from None

    def close(self) -> None:
        """Give the lock back."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # -- nsqd.dat --------------------------------------------------------------------------------

    def save_names(self, broker: Broker) -> None:
        """Replace nsqd.dat; what goes wrong is logged."""
        try:
            self._write_names(broker)
        except OSError as error:
            self._log.error("failed to persist metadata - %s", error)

    def save_first_names(self, broker: Broker) -> None:
        """Replace nsqd.dat at the start; StartError when the folder cannot be written."""
        try:
            self._write_names(broker)
        except OSError as error:
            reason = f"open {error.filename}: {_reason(error)}"
            raise StartError(f"failed to persist metadata - {reason}") from None

    def _write_names(self, broker: Broker) -> None:
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
        new = self._folder / f"nsqd.dat.{os.getpid()}.tmp"
        with _open_private(new) as file:
            file.write(text.encode())
        os.replace(new, self._folder / "nsqd.dat")

    def load(self, broker: Broker) -> None:
        """Make the topics and channels of nsqd.dat and fill them; StartError if unreadable."""
        path = self._folder / "nsqd.dat"
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            call = "read" if isinstance(error, IsADirectoryError) else "open"
            reason = f"failed to read metadata from {path} - {call} {path}: {_reason(error)}"
            raise StartError(f"failed to load metadata - {reason}") from None
        # All of it before the first queue: reading a queue removes its files.
        try:
            metadata = _object(json.loads(content), "the file")
            topics = [_SavedTopic(entry) for entry in _list(metadata, "topics")]
        except (ValueError, RecursionError) as error:
            reason = f"failed to parse metadata in {path} - {error}"
            raise StartError(f"failed to load metadata - {reason}") from None
        try:
            for topic in topics:
                self._load_topic(broker, topic)
        except OSError as error:
            raise StartError(f"failed to load metadata - {error}") from None

    def _load_topic(self, broker: Broker, saved: _SavedTopic) -> None:
        if not saved.is_valid:
            self._log.warning("skipping creation of invalid topic %s", saved.name)
            return
        topic = broker.topic(saved.name)
        topic.pause(saved.paused)
        for entry in saved.channels:
            if not entry.is_valid:
                self._log.warning("skipping creation of invalid channel %s", entry.name)
                continue
            channel = topic.channel(entry.name)
            channel.pause(entry.paused)
            channel.restore(self._read_queue(f"{saved.name}:{entry.name}"))
        topic.restore(self._read_queue(saved.name))

    # -- queues ----------------------------------------------------------------------------------

    def save(self, broker: Broker) -> None:
        """Write nsqd.dat and every message that is left; ephemeral ones are dropped."""
        self.save_names(broker)
        for topic in broker.topics.values():
            if topic.ephemeral:
                continue
            self._write_queue(topic.name, topic.queue)
            for channel in topic.channels.values():
                if not channel.ephemeral:
                    self._write_queue(f"{topic.name}:{channel.name}", channel.everything())

    def forget(self, topic: str, channel: str | None) -> None:
        """Remove the queue files of a deleted topic or channel, if there are any."""
        if not is_ephemeral(channel or topic):
            self._remove_files(f"{topic}:{channel}" if channel else topic)

    def _data_path(self, queue: str, number: int) -> Path:
        return self._folder / f"{queue}.diskqueue.{number:06d}.dat"

    def _meta_path(self, queue: str) -> Path:
        return self._folder / f"{queue}.diskqueue.meta.dat"

    def _remove_files(self, queue: str) -> None:
        # Not by the glob alone: the topic "t.diskqueue.x" has files that begin like those of "t".
        own = re.compile(re.escape(queue) + r"\.diskqueue\.([0-9]+|meta)\.dat")
        for path in self._folder.glob(f"{queue}.diskqueue.*.dat"):
            if own.fullmatch(path.name):
                path.unlink()

    def _write_queue(self, queue: str, messages: Iterable[QueuedMessage]) -> None:
        try:
            self._remove_files(queue)
            count, number, position = self._write_records(queue, messages)
            if count:
                text = f"{count}\n0,0\n{number},{position}\n"
                with _open_private(self._meta_path(queue)) as file:
                    file.write(text.encode())
        except OSError as error:
            self._log.error("failed to save the messages of %s - %s", queue, error)

    def _write_records(self, queue: str, messages: Iterable[QueuedMessage]) -> tuple[int, int, int]:
        """How many were written, the last file's number and its size."""
        count = number = position = 0
        file = None
        try:
            for message in messages:
                size = _HEAD_SIZE + len(message.body)
                if file is not None and position + 4 + size > self._max_bytes_per_file:
                    file.close()
                    file, number, position = None, number + 1, 0
                if file is None:
                    file = _open_private(self._data_path(queue, number))
                head = _RECORD.pack(size, message.timestamp, message.attempts, message.id)
                file.write(head + message.body)
                position += 4 + size
                count += 1
        finally:
            if file is not None:
                file.close()
        return count, number, position

    def _read_queue(self, queue: str) -> list[QueuedMessage]:
        """The messages of a queue's files from the read position on. The files are removed."""
        try:
            words = self._meta_path(queue).read_text().replace(",", " ").split()
            _depth, first, start, last, end = map(int, words)
        except FileNotFoundError:
            return []
        except ValueError:
            self._log.error("diskqueue(%s) has a broken meta file", queue)
            return []
        messages: list[QueuedMessage] = []
        for number in range(first, last + 1):
            path = self._data_path(queue, number)
            try:
                data = path.read_bytes()
                messages += _records(data, start, end if number == last else len(data))
            except FileNotFoundError:
                # nsqd opens a file with its first message.
                pass
            except ValueError as error:
                self._log.error("diskqueue(%s) %s is unreadable - %s", queue, path, error)
                path.rename(f"{path}.bad")
            start = 0
        self._remove_files(queue)
        return messages


class _Saved:
    """A topic or channel of nsqd.dat. What is missing or null is empty or False, as in Go."""

    def __init__(self, entry: Any, kind: str = "channel") -> None:
        found = _object(entry, f"a {kind}")
        name, paused = found.get("name"), found.get("paused")
        self.name: str = "" if name is None else name
        self.paused: bool = False if paused is None else paused
        if not isinstance(self.name, str) or not isinstance(self.paused, bool):
            raise ValueError(f"name or paused flag of a {kind} has a wrong type")

    @property
    def is_valid(self) -> bool:
        # A lone surrogate from a \u escape cannot be encoded; "?" is not valid either.
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


def _open_private(path: Path) -> BinaryIO:
    """A new file for writing that only its owner may read, whatever the umask: as nsqd's."""
    return open(path, "wb", opener=lambda path, flags: os.open(path, flags, 0o600))


def _reason(error: OSError) -> str:
    """The error in Go's words, which begin with a small letter."""
    return (error.strerror or str(error)).lower()


def _records(data: bytes, offset: int, end: int) -> Iterator[QueuedMessage]:
    """The messages between two positions of a file; ValueError when they do not fit."""
    end = min(end, len(data))
    while offset < end:
        if end - offset < _RECORD.size:
            raise ValueError(f"record at {offset} is cut off")
        size, timestamp, attempts, id = _RECORD.unpack_from(data, offset)
        stop = offset + 4 + size
        if size < _HEAD_SIZE or stop > end:
            raise ValueError(f"record at {offset} has size {size}")
        yield QueuedMessage(id, timestamp, data[offset + _RECORD.size : stop], 0.0, attempts)
        offset = stop
