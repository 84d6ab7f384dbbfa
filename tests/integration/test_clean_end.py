"""The end of a connection between two publishes, behind TLS and compression."""

from __future__ import annotations

import pytest

from gnsqsync import Writer
from tests.integration.conftest import Client
from tests.integration.test_secure import LAYERS, options_for
from tests.support.faultproxy import UP, FaultProxy
from tests.support.servers import Site
from tests.support.worlds import World


@pytest.mark.parametrize("gap", [0.02, 0.05])
@pytest.mark.parametrize("name", ["clear", *LAYERS])
def test_behind_tls_and_compression_nothing_is_written_behind_the_end(
    client: Client, site: Site, world: World, topic: str, name: str, gap: float
) -> None:
    """The proxy ends the connection towards the Writer, and would pass on what still comes."""
    nsqd = site.nsqd(*site.certificates.flags)
    options = options_for(name, site) if name in LAYERS else {}
    with FaultProxy(nsqd.tcp_address) as proxy:
        writer = client.keep(Writer(proxy.text, runtime=world.runtime, **options))
        for number in range(3):
            writer.publish(topic, f"{number}")
        (link,) = proxy.links
        passed = link.pipes[UP].position
        link.end_sending()
        world.sleep(gap)
        writer.publish(topic, "behind")
        # What comes when the Writer closes the old connection is TLS's goodbye, no publish.
        assert link.pipes[UP].position - passed < 50
        assert proxy.accepted == 2
        assert writer.stats().outcome_unknown == 0
