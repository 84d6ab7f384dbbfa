"""Questions of tests to an RdyAllocator: the RDY that it gave to one nsqd, and why."""

from __future__ import annotations

from typing import Any

from gnsqsync.policy.rdy import RdyAllocator

__all__ = ["is_idle", "node_under_test", "rdy_of"]


def rdy_of(allocator: RdyAllocator[Any], node: Any) -> int:
    """Return the RDY of a node; 0 for an unknown one."""
    found = allocator._nodes.get(node)
    return 0 if found is None else found.rdy


def is_idle(allocator: RdyAllocator[Any], node: Any) -> bool:
    """Return True if the node was idle at the last update."""
    return node in allocator._nodes and allocator._nodes[node].idle


def node_under_test(allocator: RdyAllocator[Any]) -> Any:
    """Return the node that has RDY 1 for the test message of the backoff, or None."""
    test = allocator._test
    return None if test is None or not test.rdy else test.key
