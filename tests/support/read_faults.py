"""Faults of a read task of Spark: an attempt is killed, delayed or fails at a named point.

Knows the steps of an attempt. Must not know Spark. The package does not know this module.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any

from gnsqsync.spark.open_store import open_store
from gnsqsync.spark.read_plan import PartitionPlan, ReadSettings
from gnsqsync.spark.read_task import _Task
from gnsqsync.spark.wal import Marker, Wal

__all__ = ["POINTS", "Faults", "read_with_faults"]

# Points in the order in which an attempt passes them. The points of an entry come for each entry.
POINTS = ("collected", "before_create", "after_create", "after_finish", "before_close", "emit")
_FAULT = re.compile(r"(\w+)(?:#(\d+))?:(\w+)(?:=(.+))?")
# Actions -> pattern of the value after their =.
_VALUES = {
    "kill": "",
    "kill_once": ".+",
    "delay": r"\d+(\.\d+)?(-\d+(\.\d+)?)?",
    "fail": "",
}


class Faults:
    """The faults of one attempt, such as ``"before_create:delay=0-0.3;after_create#2:kill"``.

    The text has ``point:action`` parts with ``;`` between them. ``point#n`` is the n-th passing,
    from 1. Actions: ``kill`` (SIGKILL to this process), ``kill_once=<path>`` (only in the process
    that makes this file, which has its process id), ``delay=<seconds>`` or ``delay=<from>-<to>``
    (random), ``fail`` (an error). ValueError for any other text.
    """

    def __init__(self, text: str) -> None:
        self._passed = dict.fromkeys(POINTS, 0)
        self._faults: list[tuple[str, int, str, str]] = []
        for word in filter(None, text.split(";")):
            found = _FAULT.fullmatch(word.strip())
            point, number, action, value = found.groups("") if found else ("", "", "", "")
            if point not in POINTS or not re.fullmatch(_VALUES.get(action, "(?!)"), value):
                raise ValueError(
                    f"fault {word!r} is not point:action with a point of {', '.join(POINTS)}"
                    " and an action: kill, kill_once=<path>, delay=<seconds>, fail"
                )
            self._faults.append((point, int(number or 0), action, value))

    def __call__(self, point: str) -> None:
        """Strike the attempt, which passes ``point``."""
        self._passed[point] += 1
        for at, number, action, value in self._faults:
            if at == point and number in (0, self._passed[point]):
                self._do(point, action, value)

    def _do(self, point: str, action: str, value: str) -> None:
        if action == "delay":
            low, _, high = value.partition("-")
            time.sleep(random.uniform(float(low), float(high or low)))
        elif action == "fail":
            raise OSError(f"a fault that a test asked for, at {point}")
        elif action == "kill" or _made(value):
            os.kill(os.getpid(), signal.SIGKILL)


def _made(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    os.write(descriptor, b"%d" % os.getpid())
    os.close(descriptor)
    return True


def read_with_faults(
    plan: PartitionPlan, settings: ReadSettings, columns: Sequence[str], faults: str
) -> Iterator[Any]:
    """Read one partition, as ``read_partitions`` does, with an attempt that the faults strike."""
    task = _StruckTask(plan, settings, Faults(faults))
    task.close()
    yield from task.emit(columns)


class _StruckTask(_Task):
    def __init__(self, plan: PartitionPlan, settings: ReadSettings, faults: Faults) -> None:
        super().__init__(plan, settings, open_store(settings.wal_path, settings.wal_options))
        self._faults = faults
        self._wal = self._struck_wal = _StruckWal(plan, settings, faults)

    def _write(self, intake: Any, end: bool) -> None:
        self._faults("collected")
        with self._struck_wal as wal:
            super()._write(intake, end)
        if wal.has_created:
            self._faults("after_finish")
        if self._closed:
            self._faults("before_close")

    def emit(self, columns: Sequence[str]) -> Iterator[Any]:
        for batch in super().emit(columns):
            self._faults("emit")
            yield batch


class _StruckWal(Wal):
    """A log whose faults strike around the making of an entry, right after the marker is read."""

    def __init__(self, plan: PartitionPlan, settings: ReadSettings, faults: Faults) -> None:
        store = open_store(settings.wal_path, settings.wal_options)
        super().__init__(store, plan.stream, settings.retention)
        self._faults = faults
        self._is_entered = False
        self.has_created = False

    def __enter__(self) -> _StruckWal:
        self._is_entered = True
        self.has_created = False
        return self

    def __exit__(self, *_: object) -> None:
        self._is_entered = False

    def marker(self) -> Marker:
        if self._is_entered:
            self._faults("before_create")
        return super().marker()

    def create(self, epoch: int, partition: int, number: int, data: bytes) -> bool:
        self.has_created = super().create(epoch, partition, number, data)
        if self.has_created:
            self._faults("after_create")
        return self.has_created
