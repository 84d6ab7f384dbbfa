"""A description of the machine, to be kept with the figures."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux; the platform module knows a little
    return platform.processor() or platform.machine()


def usable_cpus() -> list[int]:
    """The CPUs that this process may use, or none where the system has no affinity."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    return sorted(os.sched_getaffinity(0))


def describe() -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "usable_cpus": usable_cpus(),
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load_average": list(os.getloadavg()),
    }


def title(described: dict[str, Any]) -> str:
    """The machine in one line."""
    return (
        f"{described['cpu']}, {described['cores']} cores, {described['kernel']},"
        f" {described['python']}, {described['nsqd']}"
    )
