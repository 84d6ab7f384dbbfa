"""A store of Spark's log in memory, which records its operations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gnsqsync.spark.stores import Names, Store

__all__ = ["Memory"]


class Memory(Store):
    """A store that keeps names in a dict and records its operations."""

    url = "memory"
    what = "walPath"

    def __init__(self) -> None:
        self.names: dict[str, bytes] = {}
        self.done: list[str] = []

    def create(self, name: str, data: bytes) -> bool:
        self.done.append(f"create {name}")
        return self.names.setdefault(name, data) is data

    def read(self, name: str, limit: int | None = None) -> bytes | None:
        self.done.append(f"{'read' if limit is None else 'head'} {name}")
        data = self.names.get(name)
        return data if data is None or limit is None else data[:limit]

    def put(self, name: str, data: bytes) -> None:
        self.done.append(f"put {name}")
        self.names[name] = data

    def sizes(self, prefix: str = "") -> dict[str, int]:
        return {
            name: len(data)
            for name, data in sorted(self.names.items())
            if not prefix or name.startswith(f"{prefix}/")
        }

    def folders(self, prefix: str = "") -> Names:
        start = f"{prefix}/" if prefix else ""
        below = [name[len(start) :] for name in self.sizes(prefix)]
        return sorted({name.partition("/")[0] for name in below if "/" in name})

    def exists(self, name: str) -> bool:
        raise NotImplementedError

    def modified(self, name: str) -> float | None:
        raise NotImplementedError

    def writing(self, name: str) -> Any:
        raise NotImplementedError

    def reading(self, name: str) -> Any:
        raise NotImplementedError

    def copy(self, pairs: Iterable[tuple[str, str]]) -> None:
        raise NotImplementedError

    def delete(self, names: Iterable[str], *, durable: bool = False) -> None:
        for name in names:
            self.done.append(f"delete {name}")
            self.names.pop(name, None)

    def delete_folder(self, prefix: str) -> None:
        self.delete(self.list(prefix))

    def read_entries(self) -> list[str]:
        return [what[5:] for what in self.done if what.startswith("read") and "arrow" in what]
