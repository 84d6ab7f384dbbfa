"""A store of a process that dies before its n-th change, without ending one.

Knows which calls of a store change it. A test gives it to the jobs in the place of the real one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gnsqsync.spark.stores import Store


class Killed(BaseException):
    """Stands for kill -9: nobody handles it."""


class MortalStore:
    """A store whose changes raise Killed when the countdown, which several may share, is over.

    ``countdown``: a list with one number, the changes that are still allowed. A group of copies or
    deletions is as many changes.
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
