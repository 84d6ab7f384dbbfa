"""Questions of tests to ReaderNodes."""

from __future__ import annotations

from gnsqsync.addresses import Address
from gnsqsync.policy.nodes import NodeState, ReaderNodes

__all__ = ["states_of"]


def states_of(nodes: ReaderNodes) -> dict[Address, NodeState]:
    """Return the state of each known address."""
    return {address: node.state for address, node in nodes._nodes.items()}
