"""Orders of a read task: its part of an epoch, and its settings. Plain values, picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PartitionPlan", "ReadSettings"]


@dataclass(frozen=True)
class PartitionPlan:
    """A part of an epoch for one task: at most ``budget`` messages of a channel on one nsqd.

    ``nsqd``: host:port. ``judged``: True if the driver reads in the log which nsqds were not
    reached, and decides whether that is an error. The task then notes an nsqd that refuses us for
    good in the log, as it notes an nsqd that cannot be reached.
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
    """Settings of every read task of a source; picklable. Times in seconds, sizes in bytes.

    ``wal_path``, ``wal_options``: see open_store. ``max_in_flight``: messages in flight on one
    connection. ``segment_bytes``: bodies in one log entry. ``max_bytes_in_memory``: rows beyond
    this size are read from the log again. ``poll_timeout``: an attempt that gets no message for
    this time ends, even if its budget is not used up. ``msg_timeout``: nsqd gives the messages of
    a dead task to others after this time. ``retention``: time that a committed epoch stays in the
    log. ``deduplicate``: drop messages that nsqd delivers again and that the log has.
    ``fail_on_data_loss``: a damaged log is an error. ``must_reach``: an nsqd that cannot be
    reached is an error of the task, because no driver judges it. ``connection``: fields of
    ConnectionOptions.
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
