"""Decisions without I/O: RDY of each nsqd, backoff, redials, outages, log lines about troubles.

Knows counts, moments, addresses and errors. Must not know sockets, threads, locks or clocks: time
and chance are arguments. Each module stands alone but for what it imports; an owner in ``reader/``,
``writer/`` or ``runtime/`` holds a lock around the objects that are not thread-safe.

For RDY, three objects work together: ``Backoff`` says how many messages may be in flight, the
``RdyAllocator`` divides that among nsqds as shares, and each connection's ``RdyLevel`` asks for its
share or less. Surprise: RDY on the wire is therefore often below the share.
"""
