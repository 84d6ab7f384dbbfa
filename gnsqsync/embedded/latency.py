"""The end-to-end latency of a channel: times between publish and FIN, as quantiles.

Knows --e2e-processing-latency-percentile and -window-time. Does not know channels.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnsqsync.embedded.options import NsqdOptions

__all__ = ["LatencyWindow", "latency_figures"]

# Samples kept of each half of a window, the newest ones. nsqd keeps a sketch of all samples.
_SAMPLES = 10_000
_ERROR = 0.01


class _Half:
    """The number of samples in half a window, and the newest of them."""

    __slots__ = ("count", "latencies")

    def __init__(self) -> None:
        self.count = 0
        self.latencies: deque[int] = deque(maxlen=_SAMPLES)


class LatencyWindow:
    """The samples of the current half of a window and of the half before it, from ``now`` on.

    The samples cover between half a window and a whole one, as nsqd's do.
    """

    __slots__ = ("_began", "_halves", "_length", "quantiles")

    def __init__(self, quantiles: tuple[float, ...], window: float, now: float) -> None:
        self.quantiles: tuple[float, ...] = quantiles
        self._length = max(window / 2, 1e-3)
        self._began = now
        self._halves = (_Half(), _Half())

    @classmethod
    def for_options(cls, options: NsqdOptions, now: float) -> LatencyWindow | None:
        """Return a window, or None if no percentile is asked for."""
        quantiles = options.e2e_processing_latency_percentile
        if not quantiles:
            return None
        return cls(quantiles, options.e2e_processing_latency_window_time, now)

    def add(self, now: float, latency_ns: int) -> None:
        _, current = self.halves(now)
        current.count += 1
        current.latencies.append(latency_ns)

    def halves(self, now: float) -> tuple[_Half, _Half]:
        """Return the previous half and the current one."""
        turns = math.floor((now - self._began) / self._length)
        if turns > 0:
            self._began += turns * self._length
            self._halves = (self._halves[1] if turns == 1 else _Half(), _Half())
        return self._halves


def latency_figures(windows: list[LatencyWindow], now: float) -> dict[str, Any]:
    """Return ``e2e_processing_latency`` of /stats for one channel, or for all of a topic."""
    if not windows:
        return {"count": 0, "percentiles": None}
    halves = [half for window in windows for half in window.halves(now)]
    samples = sorted(latency for half in halves for latency in half.latencies)
    quantiles = windows[0].quantiles
    percentiles: list[dict[str, float]] = []
    for quantile in quantiles:
        value = samples[_rank(quantile, len(samples), quantiles)] if samples else 0
        percentiles.append({"quantile": quantile, "value": value})
    return {"count": sum(half.count for half in halves), "percentiles": percentiles}


def _rank(quantile: float, count: int, quantiles: tuple[float, ...]) -> int:
    """Return the index of nsqd's answer among ``count`` sorted samples that its sketch holds.

    The sketch goes up from the wanted rank by half of its allowed error, and by one at least
    (Cormode et al., Effective Computation of Biased Quantiles over Data Streams; error 1 %).
    """
    rank = math.ceil(quantile * count)
    errors = []
    for target in quantiles:
        if target * count <= rank:
            errors.append(2 * _ERROR * rank / target)
        elif target < 1:
            errors.append(2 * _ERROR * (count - rank) / (1 - target))
    return min(rank + math.ceil(min(errors) / 2), count - 1)
