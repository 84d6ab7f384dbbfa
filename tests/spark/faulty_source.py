"""``format("nsq-with-faults")``: as "nsq", with an option ``fault`` for the tasks that read.

Imported by Spark's workers, too. The option: see ``tests.support.read_faults``.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from gnsqsync.spark import NsqDataSource
from gnsqsync.spark.batch import NsqBatchReader
from gnsqsync.spark.options import SourceOptions
from gnsqsync.spark.source import NsqStreamReader
from tests.support.read_faults import read_with_faults

__all__ = ["FaultyDataSource"]


class FaultyDataSource(NsqDataSource):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._faults = options.pop("fault", "")
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "nsq-with-faults"

    def streamReader(self, schema: StructType) -> NsqStreamReader:
        options = SourceOptions.parse(self.options, streaming=True)
        return _StruckStreamReader(options, schema, self._faults)

    def reader(self, schema: StructType) -> NsqBatchReader:
        options = SourceOptions.parse(self.options, streaming=False)
        return _StruckBatchReader(options, schema, self._load_id, self._faults)


class _StruckStreamReader(NsqStreamReader):
    def __init__(self, options: SourceOptions, schema: StructType, faults: str) -> None:
        super().__init__(options, schema)
        self._faults = faults

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for plan in partition.value:
            yield from read_with_faults(plan, self._settings, self._columns, self._faults)


class _StruckBatchReader(NsqBatchReader):
    def __init__(
        self, options: SourceOptions, schema: StructType, load_id: str, faults: str
    ) -> None:
        super().__init__(options, schema, load_id)
        self._faults = faults

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for plan in partition.value.plans:
            yield from read_with_faults(plan, self._settings, self._columns, self._faults)
