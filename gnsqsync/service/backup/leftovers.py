"""The end of a file whose process was killed: cut back to its last whole message or gzip member.

What is cut off was never synced, so its messages were never finished: NSQ delivers them again.
"""

from __future__ import annotations

import logging
import zlib

from gnsqsync.service.backup.disk import Disk

__all__ = ["cut_back"]

log: logging.Logger = logging.getLogger("gnsqsync.to_file")

_BLOCK = 1 << 18
# A thousand times as much may come of it.
_GZIP_BLOCK = 1 << 14


def cut_back(disk: Disk, file: int, *, gzip: bool) -> int:
    """Cut off and sync; how many bytes that were, 0 for a file that is whole."""
    size = disk.size(file)
    whole = _end_of_members(disk, file, size) if gzip else _end_of_lines(disk, file, size)
    if whole < size:
        disk.truncate(file, whole)
        disk.sync(file)
    return size - whole


def _end_of_lines(disk: Disk, file: int, size: int) -> int:
    end = size
    while end > 0:
        start = max(0, end - _BLOCK)
        newline = disk.read(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _end_of_members(disk: Disk, file: int, size: int) -> int:
    """Up to where members are complete: the file is read from its start, as gzip has no index.

    Damage is no cut: what lies behind it may be whole, so such a file stays as it is.
    """
    whole = offset = 0
    member = zlib.decompressobj(31)
    while data := disk.read(file, _GZIP_BLOCK, offset):
        offset += len(data)
        while data:
            try:
                member.decompress(data)
            except zlib.error as error:
                if _is_zero(disk, file, whole):  # as a power failure leaves it
                    return whole
                log.warning("a gzip file is damaged behind byte %d, and stays so: %s", whole, error)
                return size
            if not member.eof:
                break
            data = member.unused_data
            whole = offset - len(data)
            member = zlib.decompressobj(31)
    return whole


def _is_zero(disk: Disk, file: int, offset: int) -> bool:
    while data := disk.read(file, _BLOCK, offset):
        if data.strip(b"\0"):
            return False
        offset += len(data)
    return True
