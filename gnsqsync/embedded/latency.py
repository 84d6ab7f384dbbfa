"""End-to-end latency of a channel: how long messages took from publish to FIN, as quantiles.

Knows --e2e-processing-latency-percentile and -window-time; nothing of channels.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnsqsync.embedded.options import NsqdOptions

__all__ = ["LatencyWindow", "latency_figures"]

# nsqd keeps a sketch of all samples of the window; the last so many are exact enough here.
_SAMPLES = 10_000


class LatencyWindow:
    """The newest samples of the last ``window`` seconds."""

    __slots__ = ("_samples", "quantiles", "window")

    def __init__(self, quantiles: tuple[float, ...], window: float) -> None:
        self.quantiles = quantiles
        self.window = window
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)

    @classmethod
    def for_options(cls, options: NsqdOptions) -> LatencyWindow | None:
        """A window, or None when no percentile is asked for."""
        quantiles = options.e2e_processing_latency_percentile
        if not quantiles:
            return None
        return cls(quantiles, options.e2e_processing_latency_window_time)

    def add(self, now: float, latency_ns: int) -> None:
        self._samples.append((now, latency_ns))

    def recent(self, now: float) -> list[int]:
        """The latencies (ns) within the window."""
        oldest = now - self.window
        while self._samples and self._samples[0][0] < oldest:
            self._samples.popleft()
        return [latency for _, latency in self._samples]


def latency_figures(windows: list[LatencyWindow], now: float) -> dict[str, Any]:
    """``e2e_processing_latency`` of /stats over one channel or all channels of a topic."""
    samples = sorted(latency for window in windows for latency in window.recent(now))
    if not windows:
        return {"count": 0, "percentiles": None}
    percentiles = []
    for quantile in windows[0].quantiles:
        index = min(len(samples) - 1, int(quantile * len(samples)))
        value = samples[index] if samples else 0
        percentiles.append({"quantile": quantile, "value": value})
    return {"count": len(samples), "percentiles": percentiles}
