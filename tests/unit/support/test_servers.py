"""The cells of a matrix of tests that are run, and the moment at which a server is up."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from types import SimpleNamespace
from typing import Any

from tests.support import servers
from tests.support.waiting import eventually

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


def test_the_next_function_has_the_other_kind() -> None:
    def of(function: str, world: str, kind: str) -> Any:
        return SimpleNamespace(
            nodeid=f"test_something.py::{function}[{world}-{kind}]",
            callspec=SimpleNamespace(params={"world": world, "server_kind": kind}),
            get_closest_marker=lambda name: name,
        )

    functions = ("test_it", "test_more")
    items = [of(*cell) for cell in product(functions, WORLDS, servers.KINDS)]
    left_out = servers._whose_turn_it_is_not(items)
    run = [one.callspec.params for one in items if one not in left_out]
    assert len(run) == 6
    assert {tuple(cell.values()) for cell in run} == set(product(WORLDS, servers.KINDS))


def test_a_test_without_a_mark_is_run() -> None:
    items = [item(*cell, marked=False) for cell in product(HOWS, WORLDS, servers.KINDS)]
    assert servers._whose_turn_it_is_not(items) == []


def test_a_process_is_at_rest_when_it_waits_and_not_when_it_computes() -> None:
    program = "print(flush=True)\nif input() == 'compute':\n print(flush=True)\n while True: pass"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        eventually(lambda: servers._is_at_rest(process))
        process.stdin.write(b"compute\n")
        process.stdin.flush()
        process.stdout.readline()
        assert not servers._is_at_rest(process)
        process.kill()
        process.wait()
        assert servers._is_at_rest(process)
