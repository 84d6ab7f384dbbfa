"""NSQ as a source and sink of Spark, and jobs on top: the public names, loaded on first use.

Knows the module of each name. Imports neither PySpark nor PyArrow itself, so modules that need no
Spark (the plan of an epoch, the log) are used and tested without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnsqsync.spark.envelopes import body, headers
    from gnsqsync.spark.jobs import archive, compact, replay, report, rollup
    from gnsqsync.spark.metrics import QueryMetrics
    from gnsqsync.spark.source import NsqDataSource
    from gnsqsync.spark.wal import pending

_HOME = {
    "NsqDataSource": "gnsqsync.spark.source",
    "QueryMetrics": "gnsqsync.spark.metrics",
    "archive": "gnsqsync.spark.jobs",
    "body": "gnsqsync.spark.envelopes",
    "compact": "gnsqsync.spark.jobs",
    "headers": "gnsqsync.spark.envelopes",
    "pending": "gnsqsync.spark.wal",
    "replay": "gnsqsync.spark.jobs",
    "report": "gnsqsync.spark.jobs",
    "rollup": "gnsqsync.spark.jobs",
}
_NEEDED = {"pyspark", "pyarrow", "py4j"}

__all__ = [
    "NsqDataSource",
    "QueryMetrics",
    "archive",
    "body",
    "compact",
    "headers",
    "pending",
    "replay",
    "report",
    "rollup",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'gnsqsync.spark' has no attribute {name!r}")
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _NEEDED:
            raise
        raise ImportError(
            f"gnsqsync.spark needs {error.name}, which is not installed here:"
            ' pip install "gnsqsync[spark]"'
        ) from error
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
