"""Several Readers as one: a connection has one topic and channel only, a process may want more."""

from __future__ import annotations

import random
from collections.abc import Iterable
from types import TracebackType

from gnsqsync.config import check_int
from gnsqsync.errors import ClosedError, ConfigError
from gnsqsync.policy.rdy import Load, RdyAllocator
from gnsqsync.reader import Reader
from gnsqsync.runtime import Runtime, Task, choose
from gnsqsync.stats import StopResult
from gnsqsync.timer import Timer

__all__ = ["ReaderGroup"]

# How often a shared max_in_flight is divided anew, in seconds.
_ROUND_SECONDS = 1.0
# How long a limit that was taken from a reader may be in use there, until nsqd has heard of it.
_TRANSIT_SECONDS = 0.5


class ReaderGroup:
    """Starts and stops ``readers`` together.

    ``max_in_flight``: one limit for all of them, divided anew each second: idle readers keep one
    message and lend the rest to busy ones. None leaves each with its own. ``runtime`` as for a
    Reader. Raises ConfigError when there is no reader, or one is not a Reader.
    """

    def __init__(
        self,
        readers: Iterable[Reader],
        *,
        max_in_flight: int | None = None,
        runtime: str | Runtime | None = None,
    ) -> None:
        self.readers = tuple(readers)
        if not self.readers or not all(isinstance(reader, Reader) for reader in self.readers):
            raise ConfigError("a ReaderGroup needs one Reader or more")
        if max_in_flight is not None:
            check_int("max_in_flight", max_in_flight, 1)
        self._max_in_flight = max_in_flight
        self._runtime_choice = runtime
        self._share: _SharedLimit | None = None
        self._started = False
        self._watchers: list[Task] = []
        self._results: dict[Reader, StopResult] = {}
        self._errors: list[BaseException] = []

    def start(self, block: bool = True) -> list[StopResult] | None:
        """Start all; with ``block`` until ``stop()``, then their results. See Reader.start."""
        if self._started:
            raise ClosedError("a ReaderGroup is started once; make a new one to consume again")
        self._started = True
        runtime = choose(self._runtime_choice)
        try:
            for reader in self.readers:
                if self._max_in_flight is not None:
                    # Its part of the shared limit comes when all are there.
                    reader._start_with_max_in_flight(0)
                reader.start(block=False)
                self._watchers.append(
                    runtime.spawn(f"nsq-group {reader.topic}", self._watch, reader)
                )
        except BaseException:
            self.stop(0.0)
            raise
        if self._max_in_flight is not None:
            self._share = _SharedLimit(self.readers, self._max_in_flight, runtime)
        if not block:
            return None
        try:
            return self.join()
        except BaseException:
            self.stop()
            self.join()
            raise

    def _watch(self, reader: Reader) -> None:
        """Wait for one reader; if it ended by an error, the others end too."""
        try:
            result = reader.join()
        except BaseException as error:  # noqa: BLE001 - join() raises it
            self._errors.append(error)
            self.stop()
        else:
            assert result is not None
            self._results[reader] = result

    def stop(self, timeout: float = 30.0) -> None:
        """Ask every reader to end; returns at once. See Reader.stop."""
        for reader in self.readers:
            reader.stop(timeout)

    def join(self) -> list[StopResult]:
        """Wait until all have stopped, and return their results in order.

        When one stops by an error, the others are stopped, and the error is raised here.
        """
        if not self._started:
            raise ClosedError("the ReaderGroup is not started")
        for watcher in self._watchers:
            watcher.join()
        if self._share is not None:
            self._share.close()
        if self._errors:
            raise self._errors[0]
        return [self._results[reader] for reader in self.readers]

    def __enter__(self) -> ReaderGroup:
        if not self._started:
            self.start(block=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        self.join()


class _SharedLimit:
    """Divides one max_in_flight over readers as a reader divides its own over nsqds."""

    def __init__(self, readers: tuple[Reader, ...], limit: int, runtime: Runtime) -> None:
        self._readers = readers
        self._runtime = runtime
        self._allocator: RdyAllocator[int] = RdyAllocator(
            limit,
            low_rdy_idle_timeout=10.0,
            low_rdy_timeout=30.0,
            transit=_TRANSIT_SECONDS,
            rng=random.Random(),
        )
        self._received = [0] * len(readers)
        self._busy_at = [runtime.now()] * len(readers)
        for index in range(len(readers)):
            self._allocator.add(index, limit, runtime.now())
        self._timer = Timer(runtime, "nsq-timer group")
        self._timer.start()
        self._round()

    def _round(self) -> None:
        now = self._runtime.now()
        loads = {}
        for index, reader in enumerate(self._readers):
            stats = reader.stats()
            if stats.received != self._received[index]:
                self._received[index] = stats.received
                self._busy_at[index] = now
            loads[index] = Load(stats.in_flight, self._busy_at[index])
        for index, share in self._allocator.update(now, loads):
            self._readers[index].set_max_in_flight(share)
        self._timer.after(_ROUND_SECONDS, self._round)

    def close(self) -> None:
        self._timer.stop()
