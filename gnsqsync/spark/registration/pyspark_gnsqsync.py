"""The module by which Spark finds ``format("nsq")``; installed at the top level.

Spark imports every module named ``pyspark_*``. An exception here would hide all other formats, too.
"""

from __future__ import annotations

try:
    from gnsqsync.spark import NsqDataSource as DefaultSource
except ImportError:  # without PyArrow, or a PySpark before 4.0
    pass
else:
    __all__ = ["DefaultSource"]
