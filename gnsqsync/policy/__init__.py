"""Decisions without I/O: RDY of each nsqd, backoff, redials, outages, log lines about troubles.

Knows counts, moments, addresses and errors. Must not know sockets, threads, locks or clocks: time
and chance are arguments. Few objects here are thread-safe: an owner in ``reader/``, ``writer/`` or
``runtime/`` holds a lock around them.

For RDY, three objects work together: ``Backoff`` says how many messages may be in flight, the
``RdyAllocator`` divides that among nsqds as shares, and each connection's ``RdyLevel`` asks for its
share or less. Surprise: RDY on the wire is therefore often below the share.
"""
