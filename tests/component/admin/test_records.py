"""The log and the application around nsqadmin learn of each action before it begins."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock

import pytest

from gnsqsync.admin.access import RECORD
from gnsqsync.admin.actions import Actions, Visitor
from gnsqsync.admin.api import visitor

Act = Callable[[Actions, Visitor], object]
ACTIONS: list[tuple[Act, tuple[str, str], str]] = [
    (lambda a, who: a.create("t", "c", who), ("create", "channel c of t"), "info"),
    (lambda a, who: a.delete("t", "", who), ("delete", "topic t"), "warning"),
    (lambda a, who: a.change("empty", "t", "c", who), ("empty", "channel c of t"), "warning"),
    (lambda a, who: a.change("pause", "t", "", who), ("pause", "topic t"), "info"),
    (lambda a, who: a.change("unpause", "t", "", who), ("unpause", "topic t"), "info"),
    (lambda a, who: a.tombstone("t", "h:1", who), ("tombstone", "topic t on h:1"), "warning"),
    (
        lambda a, who: a.publish("t", b"x", "h:1", who),
        ("publish", "a message to topic t on h:1"),
        "info",
    ),
]


@pytest.mark.parametrize(("act", "told", "level"), ACTIONS)
def test_an_action_without_a_record_is_not_begun(
    act: Act, told: tuple[str, str], level: str
) -> None:
    cluster, log = Mock(), Mock()
    record = Mock(side_effect=OSError("no database"))
    who = visitor({"PATH_INFO": "/", "REMOTE_ADDR": "10.0.0.1", "REMOTE_PORT": "5", RECORD: record})
    with pytest.raises(OSError, match="no database"):
        act(Actions(cluster, Mock(), log), who)
    record.assert_called_once_with(*told)
    assert cluster.mock_calls == []
    line = getattr(log, level).call_args.args
    assert line[0] % line[1:] in (
        f"{told[0]} of {told[1]} by 10.0.0.1:5",
        f"{told[0]} of {told[1]} is asked for by 10.0.0.1:5",
    )
