"""Messages that wait on disk take no memory. Millions are for tests.bench.embedded_disk."""

from __future__ import annotations

from tests.bench.embedded_disk import waiting_memory


def test_memory_stays_flat() -> None:
    first, *later = waiting_memory(50_000, 100)
    # In memory they would take 14 MB.
    assert max(later) - first < 3_000_000
