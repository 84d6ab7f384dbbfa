"""A store that simulates the death of a process before its n-th change.

Knows the calls that change a store. A test gives it to the jobs in place of the real store.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gnsqsync.spark.stores import Store


class Killed(BaseException):
    """The simulated kill -9, which no code handles."""


class MortalStore:
    """A store whose changes raise Killed after a countdown, which several stores may share.

    ``countdown``: a list with one number, the changes that are still allowed. Each copy or deletion
    of a group counts.
    """

    def __init__(self, store: Store, countdown: list[int]) -> None:
        self._store = store
        self._countdown = countdown

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _count(self) -> None:
        self._countdown[0] -= 1
        if self._countdown[0] < 0:
            raise Killed

    def create(self, name: str, data: bytes) -> bool:
        self._count()
        return self._store.create(name, data)

    def put(self, name: str, data: bytes) -> None:
        self._count()
        self._store.put(name, data)

    def writing(self, name: str) -> Any:
        self._count()
        return self._store.writing(name)

    def copy(self, pairs: Iterable[tuple[str, str]]) -> None:
        for pair in pairs:
            self._count()
            self._store.copy([pair])

    def delete(self, names: Iterable[str], *, durable: bool = False) -> None:
        for name in names:
            self._count()
            self._store.delete([name], durable=durable)

    def delete_folder(self, prefix: str) -> None:
        self._count()
        self._store.delete_folder(prefix)
