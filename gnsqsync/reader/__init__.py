"""Consuming: the Reader that a user constructs, and the parts of a started Reader.

Knows connections, nsqlookupds and handlers. It publishes dead letters, so it knows the Writer, too.
Must not know signals, processes or a framework.

``reader`` checks options; ``running_reader`` makes the parts, starts and stops them. A message goes
from its connection through ``subscription`` and ``chunks`` to ``workers``, which call the handler.
The answer goes back to the connection, and its verdict through ``pauses`` to the backoff.
``rdy_control`` divides RDY, ``dead_letters`` settles messages that are given up, and
``housekeeping`` does periodic work. ``group`` and ``topic_group`` run several Readers.

Surprise: a worker answers without a lock. The in-flight table decides which thread answers a
message, so a worker's FIN after the loss of the connection is a silent no-op.
"""

from __future__ import annotations

from gnsqsync.reader.group import ReaderGroup
from gnsqsync.reader.reader import Reader
from gnsqsync.reader.topic_group import TopicGroup

__all__ = ["Reader", "ReaderGroup", "TopicGroup"]
