"""A rollup as series over time, one for each topic. Knows no Spark and draws nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from gnsqsync.errors import ConfigError
from gnsqsync.spark.jobs.layout import Place, as_parquet, refuse_delta

# Largest number of points of a line that can be told apart in a picture.
_POINTS = 480
# Lengths of windows that are joined, in seconds.
_LENGTHS = (60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
# Number of files that are read at a time.
_READS = 8
_COLUMNS = [
    "topic",
    "window_start",
    "window_seconds",
    "messages",
    "bytes",
    "redelivered",
    "delay_p50",
    "delay_p95",
    "delay_max",
]


@dataclass(slots=True)
class Series:
    """A topic as NumPy arrays with a value for each window. Delays in seconds, NaN if unknown."""

    topic: str
    messages: Any
    bytes: Any
    redelivered: Any
    delay_p50: Any
    delay_p95: Any
    delay_max: Any


@dataclass(slots=True)
class Rollup:
    """Windows of ``seconds`` each, without gaps. ``times``: their begins (datetime64, UTC).

    ``topics``: the topic with most messages first. ``joined``: number of windows of the rollup in
    each window here.
    """

    seconds: int
    joined: int
    times: Any
    topics: list[Series]


def load(
    path: str,
    *,
    topics: Sequence[str] = (),
    start: datetime | None = None,
    end: datetime | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Rollup:
    """Read the rollup at ``path``. Raises ConfigError if there is none, or nothing of this time.

    If there are more windows than a picture can show, neighbours are joined: numbers are added up,
    percentiles are averaged with the messages as weights.
    """
    import pyarrow as pa
    from pyarrow import compute as pc
    from pyarrow import parquet

    store = Place.of(path, storage_options, "the rollup's path").open()
    folders = store.folders()
    refuse_delta(
        store,
        folders,
        f"a report draws a rollup, and {as_parquet(store.url)} to 'gnsqsync spark rollup"
        " ARCHIVE ROLLUP' first, then ROLLUP to 'gnsqsync spark report'",
    )
    if any(name.startswith("topic=") for name in folders):
        raise ConfigError(
            f"{path} is an archive, and a report draws a rollup: run 'gnsqsync spark rollup {path}"
            " ROLLUP', then 'gnsqsync spark report ROLLUP FILE'"
        )
    if not (days := [name for name in folders if name.startswith("date=")]):
        run = f"run 'gnsqsync spark rollup ARCHIVE {path}'"
        raise ConfigError(f"there is no rollup at {path}: {run}")
    names = [
        name
        for day in days
        if _has(day, start, end)
        for name in store.list(day)
        if name.endswith("/windows.parquet")
    ]

    def read(name: str) -> Any:
        with store.reading(name) as file:
            return parquet.read_table(file, columns=_COLUMNS)

    with ThreadPoolExecutor(_READS) as pool:
        tables = list(pool.map(read, names))
    chosen = pc.scalar(True)
    moment = pa.timestamp("us", tz="UTC")
    if start is not None:
        chosen &= pc.field("window_start") >= pa.scalar(start, moment)
    if end is not None:
        chosen &= pc.field("window_start") < pa.scalar(end, moment)
    if topics:
        chosen &= pc.field("topic").isin(list(topics))
    # Files are read one by one: a reader of the folder tree would take a topic "007" for a number.
    table = pa.concat_tables(tables).filter(chosen) if tables else None
    if table is None or table.num_rows == 0:
        raise ConfigError(f"the rollup at {path} has nothing of these topics and this time")
    return arrange(table)


def _has(day: str, start: datetime | None, end: datetime | None) -> bool:
    """Return True if a folder ``date=...`` may have windows of this time."""
    began = datetime.combine(date.fromisoformat(day.partition("=")[2]), datetime.min.time(), UTC)
    return (start is None or began + timedelta(days=1) > start) and (end is None or began < end)


def arrange(table: Any) -> Rollup:
    """Return a table with the columns of the rollup as series without gaps."""
    import numpy as np

    seconds = int(table["window_seconds"][0].as_py())
    began = table["window_start"].to_numpy().astype("datetime64[s]").astype("int64")
    joined = _joined(seconds, int(began.max() - began.min()) // seconds + 1)
    width = seconds * joined
    first = began.min() // width
    index = began // width - first
    count = int(index.max()) + 1
    names = table["topic"].to_numpy(zero_copy_only=False)
    columns = {name: table[name].to_numpy() for name in _COLUMNS[3:]}
    found = []
    for topic in sorted(set(names)):
        mine = names == topic
        at = index[mine]
        values = {name: column[mine] for name, column in columns.items()}
        weights = np.bincount(at, values["messages"], count)
        shown: dict[str, Any] = {"messages": weights}
        for name in ("bytes", "redelivered"):
            shown[name] = np.bincount(at, values[name], count)
        with np.errstate(invalid="ignore"):
            for name in ("delay_p50", "delay_p95"):
                shown[name] = np.bincount(at, values[name] * values["messages"], count) / weights
        shown["delay_max"] = np.full(count, np.nan)
        np.fmax.at(shown["delay_max"], at, values["delay_max"])
        found.append(Series(topic, **shown))
    found.sort(key=lambda series: -series.messages.sum())
    times = ((np.arange(count) + first) * width).astype("datetime64[s]")
    return Rollup(width, joined, times, found)


def _joined(seconds: int, count: int) -> int:
    """Return the number of windows to join to one, so that about _POINTS are left at most."""
    if count <= _POINTS:
        return 1
    needed = count * seconds / _POINTS
    fitting = [length for length in _LENGTHS if length >= needed and length % seconds == 0]
    return fitting[0] // seconds if fitting else -(-count // _POINTS)
