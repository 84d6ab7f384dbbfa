"""The report: what it draws from a rollup, and what it says when it cannot."""

from __future__ import annotations

import base64
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

from gnsqsync.errors import ConfigError
from gnsqsync.spark.jobs import report as jobs_report
from gnsqsync.spark.jobs.report import round_limits
from gnsqsync.spark.jobs.series import load

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture
def rolled(pyspark: ModuleType, tmp_path: Path) -> Path:
    """A rollup of two hours: one topic without a gap, one with, one with a single message."""
    pytest.importorskip("matplotlib")
    rows = [row("orders", n, messages=600 + n, redelivered=n % 3, delay=0.1) for n in range(120)]
    rows += [row("<b>", n, messages=60, delay=5.0) for n in range(120) if not 30 <= n < 60]
    rows += [row("007", 90, messages=1, delay=None)]
    return write(tmp_path / "rollup", rows)


def row(
    topic: str, minute: int, *, messages: int, redelivered: int = 0, delay: float | None = 0.1
) -> dict[str, Any]:
    return {
        "topic": topic,
        "window_start": NOON + timedelta(minutes=minute),
        "window_seconds": 60,
        "messages": messages,
        "bytes": messages * 10,
        "attempts": messages + redelivered,
        "redelivered": redelivered,
        "delay_p50": delay,
        "delay_p95": None if delay is None else delay * 2,
        "delay_max": None if delay is None else delay * 3,
    }


def write(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.Table.from_pylist(list(rows))
    moment = pa.timestamp("us", tz="UTC")
    index = table.schema.get_field_index("window_start")
    table = table.set_column(index, "window_start", table["window_start"].cast(moment))
    folder = path / "date=2026-11-20" / "hour=12"
    folder.mkdir(parents=True)
    parquet.write_table(table, folder / "windows.parquet")
    return path


# Series


def test_series_have_no_gaps(rolled: Path) -> None:
    found = load(str(rolled))
    assert (found.seconds, found.joined, len(found.times)) == (60, 1, 120)
    assert str(found.times[0]) == "2026-11-20T12:00:00"
    orders, other, lonely = found.topics
    assert [series.topic for series in found.topics] == ["orders", "<b>", "007"]
    assert list(orders.messages) == [600 + n for n in range(120)]
    assert list(orders.redelivered[:4]) == [0, 1, 2, 0]
    assert other.messages[29] == 60 and other.messages[30] == 0
    assert other.delay_p95[29] == 10.0 and math.isnan(other.delay_p95[30])
    assert lonely.messages.sum() == 1 and math.isnan(lonely.delay_max[90])


def test_series_of_a_topic_and_a_time(rolled: Path) -> None:
    start, end = NOON + timedelta(minutes=10), NOON + timedelta(minutes=20)
    found = load(str(rolled), topics=["orders"], start=start, end=end)
    assert [series.topic for series in found.topics] == ["orders"]
    assert list(found.topics[0].messages) == [610 + n for n in range(10)]


def test_many_windows_are_put_together(pyspark: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [row("t", n, messages=1 + n % 2, delay=float(n % 2)) for n in range(2000)]
    found = load(str(write(tmp_path / "rollup", rows)))
    assert (found.seconds, found.joined, len(found.times)) == (300, 5, 400)
    series = found.topics[0]
    assert series.messages.sum() == 3000
    # 0, 1, 0, 1, 0 with 1, 2, 1, 2, 1 messages.
    assert series.messages[0] == 7
    assert series.delay_p50[0] == pytest.approx(4 / 7)
    assert series.delay_max[0] == 3.0


# Pictures


def test_a_png(rolled: Path, tmp_path: Path) -> None:
    from matplotlib import image

    path = str(tmp_path / "report.png")
    assert jobs_report(str(rolled), path) == path
    pixels = image.imread(path)
    assert pixels.shape[0] > 1000 and pixels.shape[1] > 1000
    # The first topic's colour is there, and much of it is white.
    blue = (abs(pixels[..., :3] - (0x2F / 255, 0x6F / 255, 0xDE / 255)) < 0.02).all(axis=-1)
    assert blue.sum() > 500
    assert (pixels[..., :3] == 1).all(axis=-1).mean() > 0.5


def test_a_page_needs_nothing_else(rolled: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    jobs_report(str(rolled), str(path), title="a < b")
    text = path.read_text()
    assert "<title>a &lt; b</title>" in text
    assert "&lt;b&gt;" in text and "<b>" not in text
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", text)
    assert "<script" not in text
    pictures = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', text)
    assert len(pictures) == 4
    for picture in pictures:
        root = ElementTree.fromstring(base64.b64decode(picture))
        assert root.tag.endswith("svg")
    cells = re.findall(r"<td>(.*?)</td>", text)
    # 600 to 719 messages per minute in two hours.
    assert cells[1] == f"{sum(range(600, 720)):,}"
    assert cells[2:4] == ["11", "12"]
    assert cells[6] == f"{120 / sum(range(600, 720)):.2%}"
    assert cells[7:10] == ["100 ms", "200 ms", "300 ms"]
    assert text.count("<tr>") == 4


def test_the_same_rollup_gives_the_same_page(rolled: Path, tmp_path: Path) -> None:
    pages = []
    for name in ("a.html", "b.html"):
        jobs_report(str(rolled), str(tmp_path / name))
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]


@pytest.mark.parametrize("topics", [1, 7, 12])
@pytest.mark.parametrize("count", [1, 3])
def test_few_windows_and_many_topics(
    pyspark: ModuleType, tmp_path: Path, topics: int, count: int
) -> None:
    pytest.importorskip("matplotlib")
    rows = [row("t" * 60 + str(t), n, messages=5) for t in range(topics) for n in range(count)]
    rolled = write(tmp_path / "rollup", rows)
    for kind in ("png", "html"):
        assert os.path.getsize(jobs_report(str(rolled), str(tmp_path / f"r.{kind}"))) > 10_000


@pytest.mark.parametrize(
    ("low", "high", "limits"),
    [
        (12.0, 18.0, (10.0, 20.0)),
        (0.004, 30.0, (0.002, 50.0)),
        (1.0, 1.0, (1.0, 1.0)),
        (0.0005, 90000.0, (0.0005, 100000.0)),
    ],
)
def test_the_scale_of_delays_has_round_ends(
    low: float, high: float, limits: tuple[float, float]
) -> None:
    assert round_limits(low, high) == pytest.approx(limits)


# Sentences


def test_arguments_that_the_report_refuses(rolled: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither a \.png nor a \.html file"):
        jobs_report(str(rolled), str(tmp_path / "report.pdf"))
    with pytest.raises(ConfigError, match=r"there is no rollup at .*: run 'gnsqsync spark rollup"):
        jobs_report(str(tmp_path / "nothing"), str(tmp_path / "report.png"))
    with pytest.raises(ConfigError, match="has nothing of these topics and this time"):
        jobs_report(str(rolled), str(tmp_path / "report.png"), topics=["unknown"])


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gnsqsync.cli", "spark", "report", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command(rolled: Path, tmp_path: Path) -> None:
    ran = run(str(rolled), str(tmp_path / "r.html"), "--topic", "orders", "--end", "2026-11-20T13")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "60 windows" not in ran.stdout and str(tmp_path / "r.html") in ran.stdout
    assert "1 topic" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("/nowhere", "r.png"), 2, "there is no rollup at /nowhere"),
        (("{rolled}", "/nowhere/r.png"), 1, "/nowhere/r.png: No such file or directory"),
        (("{rolled}", "r.png", "--start", "now"), 2, "'now' is not a time: write"),
    ],
)
def test_the_command_says_what_is_wrong(
    rolled: Path, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    ran = run(*(word.format(rolled=rolled) for word in arguments))
    assert ran.returncode == code
    assert sentence in ran.stderr and "Traceback" not in ran.stderr
