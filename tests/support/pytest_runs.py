"""A run of pytest on a few files of a folder, for the tests of the tests' own plugins.

Knows nothing of the plugins. The run loads no installed plugin, which would take longer than most
of these runs; ``-p xdist`` loads one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.texts import ROOT


def run_pytest(
    folder: Path, *words: str, settings: str = "", environment: dict[str, str] | None = None
) -> tuple[int, str]:
    """Run pytest in ``folder`` and return its exit code and its output.

    ``settings``: lines of the section of pytest in setup.cfg.
    """
    (folder / "setup.cfg").write_text(f"[tool:pytest]\n{settings}")
    usual = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *words],
        cwd=folder,
        env={**usual, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout
