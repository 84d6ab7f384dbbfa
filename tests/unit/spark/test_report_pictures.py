"""Drawings lie within their picture, and the axis of time shows little beside the windows."""

from __future__ import annotations

from typing import Any

import pytest

from gnsqsync.spark.jobs.report import PANELS, panel_figure, prominent
from gnsqsync.spark.jobs.series import Rollup, Series

np = pytest.importorskip("numpy")
pytest.importorskip("matplotlib")


def rollup(count: int, seconds: int) -> Rollup:
    ones = np.ones(count)
    begin = np.datetime64("2026-11-20T12:00:00")
    times = begin + np.arange(count) * np.timedelta64(seconds, "s")
    series = [Series(name, ones, ones, ones, ones, 2 * ones, 3 * ones) for name in "ab"]
    return Rollup(seconds, 1, times, series)


def figures(found: Rollup) -> list[Any]:
    return [panel_figure(found, prominent(found), draw) for _, draw in PANELS]


@pytest.mark.parametrize(("count", "seconds"), [(1, 1), (1, 60), (2, 60), (480, 86400)])
def test_the_axis_of_time_ends_beside_the_windows(count: int, seconds: int) -> None:
    from matplotlib.dates import date2num

    found = rollup(count, seconds)
    span = count * seconds / 86400
    for figure in figures(found):
        low, high = figure.axes[0].get_xlim()
        assert low < date2num(found.times[0]) and high > date2num(found.times[-1])
        assert span < high - low <= 3.001 * span + 2 / 86400


@pytest.mark.parametrize("count", [1, 120])
def test_no_legend_leaves_its_picture(count: int) -> None:
    legends = 0
    for figure in figures(rollup(count, 60)):
        figure.canvas.draw()
        legend = figure.axes[0].get_legend()
        if legend is not None:
            legends += 1
            box = legend.get_window_extent()
            assert box.y0 >= 0 and box.y1 <= figure.bbox.y1
            assert box.x0 >= 0 and box.x1 <= figure.bbox.x1
    assert legends == 1
