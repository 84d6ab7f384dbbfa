"""Commands without Jinja, which only the extra "admin" installs."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from click.testing import CliRunner

from gnsqsync.admin.__main__ import run_nsqadmin
from gnsqsync.cli.cluster import cluster
from gnsqsync.embedded import ServerFailed


@pytest.fixture(autouse=True)
def without_jinja(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_nsqadmin_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_nsqadmin(["--nsqd-http-address=127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == 'nsqadmin needs Jinja: pip install "gnsqsync[admin]"\n'


def test_a_cluster_starts_without_nsqadmin(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def start(*given: Any) -> None:
        asked.append(given[-1])
        raise ServerFailed("nsqd did not start")

    monkeypatch.setattr("gnsqsync.cli.cluster._start", start)
    result = CliRunner().invoke(cluster, [])
    assert asked == [False]
    assert 'Without nsqadmin, which needs an extra: pip install "gnsqsync[admin]"' in result.output
