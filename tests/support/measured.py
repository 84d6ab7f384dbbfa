"""Coverage of the programs that tests start."""

from __future__ import annotations

import os
import sys

from tests.support.texts import ROOT

__all__ = ["measured"]


def measured() -> list[str]:
    """Return the words between ``python`` and the program if this process is measured, else [].

    At the end pytest-cov adds the data of these programs to its own.
    """
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage is not None else None
    if current is None:
        return []
    data = os.path.abspath(current.config.data_file)
    options = ["--parallel-mode", f"--rcfile={ROOT / 'setup.cfg'}", f"--data-file={data}"]
    return ["-m", "coverage", "run", *options]
