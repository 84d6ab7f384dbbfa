"""What tests ask an RdyAllocator that nobody else does: what it gave to one nsqd, and why."""

from __future__ import annotations

from typing import Any

from gnsqsync.policy.rdy import RdyAllocator

__all__ = ["is_idle", "node_under_test", "rdy_of"]


def rdy_of(allocator: RdyAllocator[Any], node: Any) -> int:
    """The RDY that this node has; 0 for one that is not there."""
    found = allocator._nodes.get(node)
    return 0 if found is None else found.rdy


def is_idle(allocator: RdyAllocator[Any], node: Any) -> bool:
    """Whether the last update took it for idle."""
    return node in allocator._nodes and allocator._nodes[node].idle


def node_under_test(allocator: RdyAllocator[Any]) -> Any:
    """The node that has RDY 1 for the test message of the backoff, or None."""
    test = allocator._test
    return None if test is None or not test.rdy else test.key
