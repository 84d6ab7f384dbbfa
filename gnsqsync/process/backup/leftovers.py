"""The repair of a file whose process was killed: a cut after the last whole message or gzip member.

The cut part was never synced, so its messages were never finished, and NSQ delivers them again.
"""

from __future__ import annotations

import logging
import zlib

from gnsqsync.process.backup.disk import Disk

__all__ = ["cut_back"]

log: logging.Logger = logging.getLogger("gnsqsync.to_file")

# Bytes of one read of data that is not compressed.
_BLOCK = 1 << 18
# Bytes of one read of gzip data, which may grow a thousandfold.
_GZIP_BLOCK = 1 << 14


def cut_back(disk: Disk, file: int, *, gzip: bool) -> int:
    """Cut off the incomplete end, and sync. Return its bytes, 0 for a whole file."""
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
    """Return the end of the last complete member. gzip has no index, so read from the start.

    A damaged file stays unchanged, because the members after the damage may be whole.
    """
    whole = offset = 0
    member = zlib.decompressobj(31)
    while data := disk.read(file, _GZIP_BLOCK, offset):
        offset += len(data)
        while data:
            try:
                member.decompress(data)
            except zlib.error as error:
                if _is_zero(disk, file, whole):  # A power failure may leave zeros.
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
