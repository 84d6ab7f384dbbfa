"""Connections of one Writer in one process by nsqd, and those that may not work.

Knows which nsqds failed and benches them. Must not know dials, outages or a publish.

A connection is unproven until its first OK, and a suspect after a publish without an answer. A
suspect whose nsqd was dialled again is replaced: it takes no publish, and may still answer.

Surprise: ``ready`` is empty while a connection is suspect, because each publish then needs a
decision of the pool.
"""

from __future__ import annotations

from collections.abc import KeysView

from gnsqsync.addresses import Address
from gnsqsync.connection.publishing import PublishingConnection
from gnsqsync.policy.redials import DialEnd
from gnsqsync.policy.writer_nodes import Policy, WriterNodes
from gnsqsync.runtime import Lock, Runtime

__all__ = ["ConnectionTable"]


class ConnectionTable:
    """Connections by address, one in use for each nsqd, with the bench of the nodes kept in step.

    The lock belongs to the NsqdPool, and guards all fields but ``ready``, ``in_doubt`` and
    ``is_closed``, which are read without it. The methods of the section "with the lock held" are
    called with the lock held, and the others without it.
    """

    def __init__(self, nodes: WriterNodes, policy: Policy, lock: Lock, runtime: Runtime) -> None:
        self._nodes = nodes
        self._failover = policy == "failover"
        self._lock = lock
        self._now = runtime.now
        # True once no publish may begin.
        self.is_closed: bool = False
        # Connections that publishes use, by address.
        self._live: dict[Address, PublishingConnection] = {}
        # Connections to use while nothing needs a decision, else empty. Replaced as a whole.
        self.ready: tuple[PublishingConnection, ...] = ()
        # Live connections without an OK so far. Their nsqds stay on the bench, as such an nsqd may
        # only accept connections.
        self._unproven: set[PublishingConnection] = set()
        # Live connections on which a publish had no answer in time.
        self._suspects: set[PublishingConnection] = set()
        # Suspects that a new connection replaced, and that may still answer publishes.
        self._replaced: dict[PublishingConnection, None] = {}
        # True while a connection is unproven, suspect or replaced: each OK is passed on to prove().
        self.in_doubt: bool = False
        # Messages that were confirmed on connections that are gone.
        self._past_published = 0

    # -- with the lock held ----------------------------------------------------------------------

    def get(self, address: Address) -> PublishingConnection | None:
        return self._live.get(address)

    @property
    def addresses(self) -> KeysView[Address]:
        """Addresses of the nsqds that have a connection in use."""
        return self._live.keys()

    def on_connected(self, connection: PublishingConnection) -> bool:
        """Take a dialled connection into use."""
        if self.is_closed:
            return False
        before = self._live.get(connection.address)
        if before is not None:
            # A second dial means that the live one answered nothing. It may answer yet.
            self._suspects.discard(before)
            self._replaced[before] = None
        self._unproven.add(connection)
        self._live[connection.address] = connection
        self.renew()
        return True

    def on_dial_failed(self, address: Address, end: DialEnd) -> None:
        """Bench the nsqd."""
        self._nodes.failed(address, self._now(), end)

    def is_sought(self, address: Address) -> bool:
        """Return True if it must be dialled again: no nsqd takes publishes."""
        if self.is_closed or address not in self._nodes.listed:
            return False
        return self._suspects.issuperset(self._live.values())

    def prove(self, connection: PublishingConnection) -> bool:
        """Take the nsqd off the bench after an OK. Return True if the connection was in doubt."""
        if connection not in self._unproven | self._suspects | self._replaced.keys():
            return False
        self._unproven.discard(connection)
        self._suspects.discard(connection)
        self._nodes.ok(connection.address)
        self.renew()
        return True

    def answered(self) -> list[PublishingConnection]:
        """Return the replaced connections that have no publish to answer any more."""
        return [c for c in self._replaced if not c.send_queue.pending]

    def suspect(self, connection: PublishingConnection, now: float) -> bool:
        """Bench the nsqd of a slow connection. Return False if the connection is not in use."""
        if self._live.get(connection.address) is not connection or self.is_closed:
            return False
        self._suspects.add(connection)
        self._nodes.failed(connection.address, now)
        self.renew()
        return True

    def bench(self, connection: PublishingConnection) -> None:
        """Bench the nsqd of a connection, unless another connection has replaced this one.

        No OK of the new connection would be passed on, and the nsqd would stay benched.
        """
        if self._live.get(connection.address, connection) is connection:
            self._nodes.failed(connection.address, self._now())

    def remove(self, connection: PublishingConnection) -> bool:
        """Take a connection out of use, once. Return True if it was a suspect."""
        was_suspect = False
        if self._live.get(connection.address) is connection:
            del self._live[connection.address]
            self._unproven.discard(connection)
            was_suspect = connection in self._suspects
            self._suspects.discard(connection)
            self._nodes.failed(connection.address, self._now())
        elif connection in self._replaced:
            self._replaced.pop(connection, None)
        else:
            return False
        self._past_published += connection.published
        self.renew()
        return was_suspect

    def renew(self) -> None:
        """Renew ``ready``: empty while an nsqd is missing or suspect."""
        self.in_doubt = bool(self._unproven or self._suspects or self._replaced)
        listed = self._nodes.listed
        if self.is_closed or self._suspects:
            self.ready = ()
            return
        wanted = [self._live.get(address) for address in (listed[:1] if self._failover else listed)]
        live = tuple(connection for connection in wanted if connection is not None)
        self.ready = live if len(live) == len(wanted) else ()

    # -- reports -----------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        return bool(self._live)

    def live(self) -> list[PublishingConnection]:
        """Return the connections in use. Takes no lock."""
        return list(self._live.values())

    def connections(self) -> list[PublishingConnection]:
        """Return the connections in use and the replaced ones."""
        with self._lock:
            return [*self._live.values(), *self._replaced]

    @property
    def published(self) -> int:
        """Count of messages that nsqds confirmed, on lost connections, too."""
        with self._lock:
            connections = [*self._live.values(), *self._replaced]
            return self._past_published + sum(c.published for c in connections)

    # -- the end -----------------------------------------------------------------------------------

    def end(self) -> list[PublishingConnection]:
        """Take no connection any more. Return all that are left.

        Takes no lock: the garbage collector and a forked child call it, too.
        """
        self.is_closed = True
        self.ready = ()
        return [*self._live.values(), *self._replaced]
