"""What tests ask ReaderNodes that nobody else does."""

from __future__ import annotations

from gnsqsync.addresses import Address
from gnsqsync.policy.nodes import NodeState, ReaderNodes

__all__ = ["states_of"]


def states_of(nodes: ReaderNodes) -> dict[Address, NodeState]:
    """What each known address is doing."""
    return {address: node.state for address, node in nodes._nodes.items()}
