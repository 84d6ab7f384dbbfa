"""The dials of one Writer that are under way or about to begin, and what came of the last ones.

A table: knows who is dialled until when, and dials nobody itself. Its owner holds a lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gnsqsync.addresses import Address
from gnsqsync.config import ConnectionOptions
from gnsqsync.errors import NSQError
from gnsqsync.net.connection import Connection
from gnsqsync.net.owner import Owner
from gnsqsync.runtime import Latch, Runtime

__all__ = ["Dial", "Dials"]

# So many seconds after its connect_timeout a dial counts as given up by who began it: killed
# between two instructions, or still looking up a name.
_GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Dial:
    """A connection that somebody is dialling, or will."""

    connection: Connection
    # Released at its end.
    over: Latch
    # When it begins.
    at: float
    # When it is over at the latest.
    due: float


class Dials:
    """At most one for each address. Not thread-safe."""

    def __init__(self, options: ConnectionOptions, runtime: Runtime, owner: Owner) -> None:
        self._options = options
        self._runtime = runtime
        self._owner = owner
        self._under_way: dict[Address, Dial] = {}
        self._failures: dict[Address, tuple[float, NSQError]] = {}

    def __contains__(self, address: object) -> bool:
        return address in self._under_way

    def __bool__(self) -> bool:
        return bool(self._under_way)

    def get(self, address: Address) -> Dial | None:
        return self._under_way.get(address)

    @property
    def addresses(self) -> Iterable[Address]:
        return self._under_way.keys()

    def all(self) -> list[Dial]:
        return list(self._under_way.values())

    def begin(self, address: Address, pause: float = 0.0) -> Dial:
        """A new one, of an address that has none; to begin in ``pause`` seconds."""
        connection = Connection(address, self._options, self._runtime, self._owner)
        at = self._runtime.now() + pause
        due = at + self._options.connect_timeout + _GRACE_SECONDS
        dial = self._under_way[address] = Dial(connection, self._runtime.latch(), at, due)
        return dial

    def end(self, connection: Connection) -> Dial | None:
        """None where it was overdue and forgotten."""
        dial = self._under_way.get(connection.address)
        if dial is None or dial.connection is not connection:
            return None
        return self._under_way.pop(connection.address)

    def take_overdue(self) -> list[Dial]:
        """Those whose end nobody has told; forgotten from now on."""
        now = self._runtime.now()
        overdue = [dial for dial in self._under_way.values() if dial.due <= now]
        for dial in overdue:
            del self._under_way[dial.connection.address]
        return overdue

    def failed(self, address: Address, error: NSQError) -> None:
        self._failures[address] = (self._runtime.now(), error)

    def worked(self, address: Address) -> None:
        self._failures.pop(address, None)

    def failure(self, address: Address, since: float) -> NSQError | None:
        """What came of the last dial of it, by whomever, if that failed ``since`` then."""
        failed_at, error = self._failures.get(address, (0.0, None))
        return error if failed_at >= since else None
