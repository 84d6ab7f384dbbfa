"""The first lines of docs/spark/cluster on three hosts, and the short form of
``python -m tests.spark.cluster``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.bench.progress import Progress
from tests.spark import hosts
from tests.spark.cluster import Campaign, Plan, Site, follow_page, open_site, page
from tests.support import seeds
from tests.support.needs import missing

MESSAGES = 3000
# A job of a user: nothing registers the source.
JOB = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
options = {"subscribe": "orders", "channel": "archive", "lookupdHttpAddresses": "lookupd:4161"}
print("rows:", spark.read.format("nsq").options(peek=True, **options).load().count())
"""
# The page's command with a word of its own at the end.
PACKED = "spark-submit --master spark://master:7077 --archives env.tar.gz#env"


@pytest.fixture
def site(pyspark: ModuleType, real_nsqd: None, tmp_path: Path) -> Iterator[Site]:
    try:
        hosts.require()
        with open_site(tmp_path) as site:
            yield site
    except hosts.Unavailable as error:
        missing(error)


@pytest.mark.timeout(900)
def test_the_page_letter_by_letter_and_what_it_says_of_errors(site: Site) -> None:
    assert follow_page(site, MESSAGES) == MESSAGES
    assert site.nsqds.left("orders", "archive") == 0
    (site.desk.files / "home" / "job.py").write_text(JOB)
    # The setting is not read for the look-up, the variable is.
    setting = "--conf spark.pyspark.python=./env/bin/python"
    status, text = site.run(f"spark-submit --master local[1] {setting} job.py")
    assert status != 0
    assert "[DATA_SOURCE_NOT_FOUND]" in text
    assert "rows: 0" in site.must_run(f"export PYSPARK_PYTHON=./env/bin/python; {PACKED} job.py")
    status, text = site.run(f"{PACKED} --deploy-mode cluster job.py")
    assert status != 0
    sentence = "Cluster deploy mode is currently not supported for python applications"
    assert f"{sentence} on standalone clusters" in text


@pytest.mark.timeout(900)
def test_deaths_with_messages_in_flight(site: Site) -> None:
    site.must_run(page()[0])
    plan = Plan(messages=30_000, kills=3, seed=seeds.seed())
    report = Campaign(plan, site, Progress()).run()
    print(report)
    assert report.is_right, f"\n{report}"
    assert [strike.kind for strike in report.strikes] == ["executor", "worker", "driver"]
    assert all(strike.held > 0 for strike in report.strikes)
    assert report.ends == []
