"""Which cells of a matrix of tests are run."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

from tests.support import servers

HOWS, WORLDS = ("at the end", "by a signal", "by an error"), ("threads", "gevent", "patched")


def item(how: str, world: str, kind: str, *, marked: bool = True) -> Any:
    return SimpleNamespace(
        nodeid=f"test_something.py::test_it[{how}-{world}-{kind}]",
        callspec=SimpleNamespace(params={"how": how, "world": world, "server_kind": kind}),
        get_closest_marker=lambda name: name if marked else None,
    )


def test_each_two_values_meet() -> None:
    items = [item(*cell) for cell in product(HOWS, WORLDS, servers.KINDS)]
    left_out = servers._whose_turn_it_is_not(items)
    run = [tuple(one.callspec.params.values()) for one in items if one not in left_out]
    assert len(run) == 9
    assert {(how, world) for how, world, _ in run} == set(product(HOWS, WORLDS))
    assert {(how, kind) for how, _, kind in run} == set(product(HOWS, servers.KINDS))
    assert {(world, kind) for _, world, kind in run} == set(product(WORLDS, servers.KINDS))


def test_what_is_not_marked_is_run() -> None:
    items = [item(*cell, marked=False) for cell in product(HOWS, WORLDS, servers.KINDS)]
    assert servers._whose_turn_it_is_not(items) == []
