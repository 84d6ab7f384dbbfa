"""What a read task is told: its part of an epoch, and how it reads. Plain values, picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PartitionPlan", "ReadSettings"]


@dataclass(frozen=True)
class PartitionPlan:
    """What one task reads: at most ``budget`` messages of a channel on one nsqd (host:port).

    ``judged``: the driver reads in the log which nsqds were not reached, and decides whether that
    is an error. So an nsqd that refuses us for good is noted in the log like one that cannot be
    reached.
    """

    stream: str
    epoch: int
    partition: int
    topic: str
    channel: str
    nsqd: str
    budget: int
    judged: bool = False


@dataclass(frozen=True)
class ReadSettings:
    """How every task of a source reads; picklable. Times in seconds, sizes in bytes.

    ``wal_path``, ``wal_options``: see open_store. ``max_in_flight``: of one connection.
    ``segment_bytes``: bodies in one log entry. ``max_bytes_in_memory``: rows above it are read
    from the log again. ``poll_timeout``: without a message, it ends an attempt that has not read
    all it was to. ``msg_timeout``: after which nsqd gives a dead task's messages to others.
    ``retention``: how long committed epochs stay in the log. ``deduplicate``: drop what nsqd
    delivers again and the log has. ``fail_on_data_loss``: whether a damaged log is an error.
    ``must_reach``: whether an nsqd that cannot be reached is one, where no driver judges that.
    ``connection``: fields of ConnectionOptions.
    """

    wal_path: str
    wal_options: Mapping[str, Any] = field(default_factory=dict)
    max_in_flight: int = 2500
    segment_bytes: int = 16 * 1024 * 1024
    max_bytes_in_memory: int = 64 * 1024 * 1024
    poll_timeout: float = 1.0
    msg_timeout: float = 15.0
    retention: float = 60.0
    deduplicate: bool = True
    fail_on_data_loss: bool = True
    must_reach: bool = False
    connection: Mapping[str, Any] = field(default_factory=dict, repr=False)
