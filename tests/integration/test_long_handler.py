"""A handler of 65 seconds keeps its message and its connection. It runs beside all other tests."""

from __future__ import annotations

import pytest

from gnsqsync import NsqdHTTP
from tests.integration.conftest import LongHandler
from tests.support.longhandler import TOPIC


@pytest.mark.parametrize("server_kind", ["real"])
def test_a_handler_may_take_65_seconds(server_kind: str, long_handler: LongHandler) -> None:
    seen = long_handler.result()
    # Many message time-outs and heartbeats later: delivered once, finished, connected all along.
    assert seen["attempts"] == [1]
    assert seen["seconds"] >= 65
    assert seen["lost"] == []
    assert seen["connections"] == 1
    assert seen["answers_failed"] == seen["requeued"] == 0
    assert seen["finished"] == seen["published"] + 1
    # The other worker went on meanwhile.
    assert seen["short"] == seen["published"] > 65
    assert seen["longest_gap"] < 20
    with NsqdHTTP(long_handler.http_address) as http:
        (channel,) = http.stats(TOPIC).topics[0].channels
    assert channel.timeout_count == channel.requeue_count == channel.in_flight_count == 0
