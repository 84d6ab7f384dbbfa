"""A disk in memory that can be killed, cut off from power, full, or in use by somebody else.

What is not synced is lost without power; a killed process loses nothing that it has written.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field


class Killed(BaseException):
    """The process ends here."""


@dataclass(eq=False)
class Inode:
    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    holder: int | None = None
    changed_at: int = 0


class MemoryDisk:
    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.synced_names: dict[str, Inode] = {}
        self.steps = 0
        self.kill_at: int | None = None
        # Bytes that still fit; None: any number.
        self.room: int | None = None
        # Folders on another file system than all others.
        self.foreign: tuple[str, ...] = ()
        self.syncs = 0
        self._open: dict[int, Inode] = {}

    # -- by the test -----------------------------------------------------------------------------

    def end_process(self) -> None:
        self.kill_at = None
        for inode in self._open.values():
            inode.holder = None
        self._open.clear()

    def end_power(self, kept: float) -> None:
        """``kept``: the part of what was not synced that is there all the same."""
        self.end_process()
        self.names = dict(self.synced_names)
        for inode in set(self.names.values()):
            more = len(inode.data) - len(inode.synced)
            if more > 0:
                del inode.data[len(inode.synced) + int(more * kept) :]
            else:
                inode.data[:] = inode.synced
            inode.synced = bytes(inode.data)

    def content(self, folder: str) -> dict[str, bytes]:
        return {
            os.path.relpath(path, folder): bytes(inode.data)
            for path, inode in sorted(self.names.items())
            if path.startswith(f"{folder}/")
        }

    def put(self, path: str, data: bytes) -> Inode:
        self.steps += 1
        inode = Inode(bytearray(data), data, changed_at=self.steps)
        self.names[path] = self.synced_names[path] = inode
        return inode

    # -- of Disk ---------------------------------------------------------------------------------

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self.kill_at:
            raise Killed

    def make_folders(self, path: str) -> None:
        pass

    def check_folder(self, path: str) -> None:
        pass

    def files(self, path: str, deep: bool) -> Iterator[str]:
        for name in self.content(path):
            if deep or "/" not in name:
                yield name

    def open(self, path: str, *, new: bool) -> int:
        self._step()
        if path in self.names and new:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        inode = self.names.setdefault(path, Inode())
        return self._opened(inode)

    def open_existing(self, path: str) -> int:
        self._step()
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return self._opened(self.names[path])

    def _opened(self, inode: Inode) -> int:
        file = self.steps
        self._open[file] = inode
        return file

    def lock(self, file: int) -> bool:
        inode = self._open[file]
        if inode.holder is None:
            inode.holder = file
        return inode.holder == file

    def is_at(self, file: int, path: str) -> bool:
        return self.names.get(path) is self._open[file]

    def exists(self, path: str) -> bool:
        return path in self.names

    def size(self, file: int) -> int:
        return len(self._open[file].data)

    def changed_at(self, path: str) -> float:
        return self.names[path].changed_at

    def read(self, file: int, size: int, offset: int) -> bytes:
        return bytes(self._open[file].data[offset : offset + size])

    def write(self, file: int, data: bytes) -> int:
        inode = self._open[file]
        fits = len(data) if self.room is None else min(self.room, len(data))
        if not fits:
            raise OSError(errno.ENOSPC, "No space left on device")
        # In two halves, so that a kill comes between them.
        written = data[: max(1, fits // 2)]
        inode.data += written
        inode.changed_at = self.steps
        if self.room is not None:
            self.room -= len(written)
        self._step()
        return len(written)

    def truncate(self, file: int, size: int) -> None:
        del self._open[file].data[size:]
        self._step()

    def sync(self, file: int) -> None:
        self._step()
        self.syncs += 1
        self._open[file].synced = bytes(self._open[file].data)
        self._step()

    def sync_folder(self, path: str) -> None:
        self._step()
        for name in {*self.names, *self.synced_names}:
            if os.path.dirname(name) == path:
                if name in self.names:
                    self.synced_names[name] = self.names[name]
                else:
                    del self.synced_names[name]
        self._step()

    def close(self, file: int) -> None:
        self._step()
        inode = self._open.pop(file)
        if inode.holder == file:
            inode.holder = None

    def remove(self, path: str) -> None:
        self._step()
        del self.names[path]
        self._step()

    def link(self, source: str, target: str) -> None:
        self._step()
        if source.startswith(self.foreign or "\0") != target.startswith(self.foreign or "\0"):
            raise OSError(errno.EXDEV, "Invalid cross-device link", source)
        if target in self.names:
            raise FileExistsError(errno.EEXIST, "File exists", target)
        self.names[target] = self.names[source]
        self._step()

    def copy(self, source: str, target: str) -> None:
        data = bytes(self.names[source].data)
        inode = self.names[target] = Inode()
        inode.data += data[: len(data) // 2]
        self._step()
        inode.data[:] = data
        inode.synced = data
        self._step()
