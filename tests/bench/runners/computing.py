"""A handler for ``gnsqsync consume`` that computes for 100 microseconds."""

from __future__ import annotations

from time import perf_counter

SECONDS = 100e-6


def handler(message: object) -> None:
    end = perf_counter() + SECONDS
    while perf_counter() < end:
        pass
