"""One nsqd over TCP: open, read, send, lose.

Knows the protocol, one socket and the in-flight table. Must not know how RDY is shared, which
nsqd takes a publish, or a user's handler: it tells its owner.
"""

from __future__ import annotations

from gnsqsync.connection.connection import PASSING_WAIT, Connection

__all__ = ["PASSING_WAIT", "Connection"]
