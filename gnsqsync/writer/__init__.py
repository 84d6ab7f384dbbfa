"""Publishing: the Writer that a user constructs, and the parts that send for it.

Knows connections and nsqlookupds. Must not know the Reader.

``writer`` checks and encodes. ``publisher`` (or ``copies``, for several nsqds) sends one command,
waits and decides about a second try. ``nsqd_pool`` chooses the connection, with
``connection_table`` for those that are there and ``dials`` for those that are missing.
``testing/`` has Writers that stand in for them in an application's tests.

Surprise: each process has its own Publisher, made at its first publish. A forked child therefore
makes its own connections, and only closes the descriptors of its parent's.
"""

from __future__ import annotations

from gnsqsync.writer.writer import Writer

__all__ = ["Writer"]
