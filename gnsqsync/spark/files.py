"""Folders that survive a crash: when a call returns, its work is on the disk.

Knows the local file system only.
"""

from __future__ import annotations

import contextlib
import os


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: str) -> None:
    """Make a folder and those above it; each name that is new is durable."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_folder(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    sync_folder(parent)
