"""--data-path: names and paused flags in nsqd.dat, and the queues over a clean stop.

The files have nsqd's own form (nsq-reference 6.1), so that the real nsqd can take over a folder
and the other way round. Knows files; what they hold lives in the broker.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gnsqsync.embedded.broker import Broker
from gnsqsync.embedded.channel import QueuedMessage
from gnsqsync.embedded.golog import Log
from gnsqsync.embedded.identify import NSQ_VERSION
from gnsqsync.embedded.names import is_ephemeral, valid_name
from gnsqsync.embedded.options import StartError

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
        """Take the lock; StartError when the folder is missing or another nsqd has it."""
        try:
            self._lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise StartError(
                f"failed to lock data-path: cannot flock directory {self._folder}"
                " - possibly in use by another instance of nsqd"
            ) from None
        except OSError as error:
            self.close()
            reason = (error.strerror or str(error)).lower()
            raise StartError(f"failed to lock data-path: open {self._folder}: {reason}") from None

    def close(self) -> None:
        """Give the lock back."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # -- nsqd.dat --------------------------------------------------------------------------------

    def save_names(self, broker: Broker) -> None:
        """Replace nsqd.dat."""
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
        target = self._folder / "nsqd.dat"
        new = self._folder / f"nsqd.dat.{os.getpid()}.tmp"
        try:
            new.write_text(text)
            os.replace(new, target)
        except OSError as error:
            self._log.error("failed to persist metadata - %s", error)

    def load(self, broker: Broker) -> None:
        """Make the topics and channels of nsqd.dat and fill them; StartError if unreadable."""
        path = self._folder / "nsqd.dat"
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
        try:
            topics = json.loads(content)["topics"] if content else []
            for found in topics or ():
                self._load_topic(broker, found)
        except OSError as error:
            raise StartError(f"failed to load metadata: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StartError(f"failed to load metadata: failed to parse {path} - {error}") from None

    def _load_topic(self, broker: Broker, found: dict[str, Any]) -> None:
        name = found["name"]
        if not valid_name(name.encode()):
            self._log.warning("skipping creation of invalid topic %s", name)
            return
        topic = broker.topic(name)
        topic.pause(bool(found.get("paused")))
        for entry in found.get("channels") or ():
            channel_name = entry["name"]
            if not valid_name(channel_name.encode()):
                self._log.warning("skipping creation of invalid channel %s", channel_name)
                continue
            channel = topic.channel(channel_name)
            channel.pause(bool(entry.get("paused")))
            channel.restore(self._read_queue(f"{name}:{channel_name}"))
        topic.restore(self._read_queue(name))

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
        """Remove the queue files of what was deleted, should there be any."""
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
                self._meta_path(queue).write_text(text)
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
                    file = open(self._data_path(queue, number), "wb")  # noqa: SIM115
                head = _RECORD.pack(size, message.timestamp, message.attempts, message.id)
                file.write(head + message.body)
                position += 4 + size
                count += 1
        finally:
            if file is not None:
                file.close()
        return count, number, position

    def _read_queue(self, queue: str) -> list[QueuedMessage]:
        """What a queue's files hold from the read position on. The files are gone afterwards."""
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
