"""gnsqsync pub, manage.py nsq_publish and flask nsq publish with what nsqd has no place for."""

from __future__ import annotations

import pytest

from gnsqsync import Reader
from tests.integration.conftest import address
from tests.integration.test_output_of_commands import MANAGE, NSQ, Commands, commands

__all__ = ["commands"]  # a fixture

FRAMEWORKS = pytest.mark.parametrize(
    "publish",
    [(*MANAGE, "nsq_publish"), (*NSQ, "publish")],
    ids=["django", "flask"],
)


@FRAMEWORKS
def test_an_argument_that_is_no_utf_8_is_sent_as_it_is(
    commands: Commands, publish: tuple[str, ...]
) -> None:
    assert commands(*publish, commands.topic, "caf\udce9", "zwölf") == (0, "")
    with Reader(
        commands.topic, "c", nsqd_tcp_addresses=address(commands.nsqd), max_in_flight=2
    ) as reader:
        bodies = set()
        for message in reader:
            bodies.add(message.body)
            message.finish()
            if len(bodies) == 2:
                break
    assert bodies == {b"caf\xe9", "zwölf".encode()}
