"""The short form of ``python -m tests.chaos.slow_handlers``."""

from __future__ import annotations

import pytest

from tests.chaos.processes import WORLDS
from tests.chaos.slow_handlers import VARIANTS, run
from tests.support import realnsq
from tests.support.needs import missing


@pytest.mark.parametrize("runtime", WORLDS)
def test_no_connection_is_closed(runtime: str) -> None:
    """nsqd sends more than RDY to who is slower than msg_timeout, and is right to do so."""
    try:
        realnsq.find_or_build()
    except realnsq.Unavailable as error:
        missing(error)
    names = [f"{name}-{runtime}" for name in ("many", "few", "large")]
    for variant, found in run([v for v in VARIANTS if v.name in names], 12.0):
        assert found["lost"] == [], variant.name
        assert found["finished"], variant.name
        # More than max_in_flight had come, or the same again.
        received = found["received"]
        assert isinstance(received, int) and received > 1000, variant.name
