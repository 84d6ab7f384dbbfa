"""The jobs on Spark as functions. Each comes from a module of its own."""

from __future__ import annotations

from gnsqsync.spark.jobs.archive import archive
from gnsqsync.spark.jobs.compaction import compact
from gnsqsync.spark.jobs.replay import replay
from gnsqsync.spark.jobs.report import report
from gnsqsync.spark.jobs.rollup import rollup

__all__ = ["archive", "compact", "replay", "report", "rollup"]
