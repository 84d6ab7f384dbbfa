"""Files that survive a power cut under their final names. The one place that renames and links.

Knows the local file system only. The whole file is on the disk before it gets its name, and then
the folder is synced. After a power cut, a name therefore stands for the old file, or for all of the
new one. An fsync that fails raises OSError.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO

__all__ = [
    "TEMPORARY",
    "create",
    "link",
    "link_all",
    "make_folder",
    "new_file",
    "replace",
    "sync_folder",
    "write",
]

# Prefix of a file without its final name. A killed process may leave such a file. The dot hides it,
# so that Spark passes it by.
TEMPORARY = ".tmp-"

# Errors of file systems that cannot sync a folder.
_NO_FOLDER_SYNC = (errno.EBADF, errno.EINVAL, errno.ENOTSUP)


def sync_folder(path: str) -> None:
    """Make the names in a folder durable, if its file system can."""
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _fsync(descriptor, path)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)


def make_folder(path: str, mode: int = 0o777) -> None:
    """Make a folder and its parents. Each new name is durable."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path.rstrip("/"))
    if parent:
        make_folder(parent, mode)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
    sync_folder(parent)


@contextlib.contextmanager
def new_file(path: str, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Make a file and yield it. FileExistsError if the name is taken.

    The file is synced at the end of the block, and removed if the block or the sync raises.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(path, flags, mode), "wb") as file:
        try:
            yield file
            file.flush()
            _fsync(file.fileno(), path)
        except BaseException:  # even after a kill, the file is not whole
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise


def write(path: str, data: bytes, mode: int = 0o666) -> None:
    """Make or replace a file. A symbolic link stays, and the file that it names is replaced.

    If this raises before the new file has its name, the old file stays.
    """
    path = os.path.realpath(path)
    temporary = _written_beside(path, data, mode)
    try:
        os.replace(temporary, path)
    except BaseException:  # even after a kill, the temporary file has no further use
        os.unlink(temporary)
        raise
    sync_folder(os.path.dirname(path))


def create(path: str, data: bytes, mode: int = 0o666) -> None:
    """Make a file. FileExistsError if the name is taken, so of several tries one succeeds.

    link(2) fails if the name exists, on NFS, too, where rename(2) would replace the file.
    """
    temporary = _written_beside(path, data, mode)
    try:
        _link(temporary, path)
    finally:
        os.unlink(temporary)
    sync_folder(os.path.dirname(path))


def replace(source: str, target: str) -> None:
    """Rename a file, over ``target`` if that exists."""
    _sync_file(source)
    os.replace(source, target)
    sync_folder(os.path.dirname(target))


def link(source: str, target: str) -> None:
    """Give a file a second name. FileExistsError if the name is taken."""
    _sync_file(source)
    _link(source, target)
    sync_folder(os.path.dirname(target))


def link_all(pairs: Iterable[tuple[str, str]]) -> None:
    """Give each (source, target) its second name. An existing target is left as it is.

    Each folder is synced once. FileNotFoundError if neither file of a pair exists.
    """
    folders = set()
    try:
        for source, target in pairs:
            folders.add(os.path.dirname(target))
            try:
                _sync_file(source)
                _link(source, target)
            except FileExistsError:
                pass
            except FileNotFoundError:
                os.stat(target)
    finally:
        for folder in sorted(folders):
            sync_folder(folder)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        # NFS repeats a request whose answer was lost, and meets its own link.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samefile(source, target):
                return
        raise


def _written_beside(path: str, data: bytes, mode: int) -> str:
    """Make a file with the data in the same folder, synced, and return its path."""
    temporary = os.path.join(os.path.dirname(path), f"{TEMPORARY}{os.urandom(16).hex()}")
    try:
        with new_file(temporary, mode) as file:
            file.write(data)
    except OSError as error:
        # The caller knows only the final name of the file.
        if error.filename == temporary:
            error.filename = path
        raise
    return temporary


def _sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _fsync(descriptor, path)
    finally:
        os.close(descriptor)


def _fsync(descriptor: int, path: str) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
