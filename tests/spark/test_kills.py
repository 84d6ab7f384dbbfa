"""The short form of ``python -m tests.spark.kills``."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.bench.progress import Progress
from tests.spark.kills import Campaign, Plan
from tests.spark.nsqds import Cluster
from tests.support import seeds


@pytest.mark.timeout(600)
def test_every_number_is_archived_once_under_kill_9(
    pyspark: ModuleType, own_cluster: Cluster, tmp_path: Path
) -> None:
    plan = Plan(messages=50_000, kills=2, seed=seeds.seed())
    report = Campaign(plan, own_cluster, tmp_path, Progress()).run()
    print(report)
    assert report.is_right, f"\n{report}"
    assert [life.how for life in report.lives] == ["kill -9"] * 2 + ["SIGTERM"]
    # JVM, driver, daemon and a worker at least.
    assert all(life.processes >= 4 for life in report.lives)
