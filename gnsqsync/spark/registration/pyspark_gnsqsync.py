"""Spark imports every module named ``pyspark_*`` to find formats; installed at the top level.

Must not raise: one that does makes Spark find no other format either.
"""

from __future__ import annotations

try:
    from gnsqsync.spark import NsqDataSource as DefaultSource
except ImportError:  # without PyArrow, or a PySpark before 4.0
    pass
else:
    __all__ = ["DefaultSource"]
