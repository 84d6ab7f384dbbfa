"""Programs that tests start, counted for coverage as the tests are."""

from __future__ import annotations

import os
import sys

from tests.support.texts import ROOT

__all__ = ["measured"]


def measured() -> list[str]:
    """What stands between ``python`` and the program, where this process is measured; else nothing.

    pytest-cov adds up what lies beside its own data in the end.
    """
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage is not None else None
    if current is None:
        return []
    data = os.path.abspath(current.config.data_file)
    options = ["--parallel-mode", f"--rcfile={ROOT / 'setup.cfg'}", f"--data-file={data}"]
    return ["-m", "coverage", "run", *options]
