"""All targets by name."""

from __future__ import annotations

from tests.fuzz import clients, peers
from tests.fuzz.harness import Target

TARGETS: dict[str, Target] = {**peers.TARGETS, **clients.TARGETS}
