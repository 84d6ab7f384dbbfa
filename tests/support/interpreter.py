"""Scripts in an interpreter of their own, for effects like a patch or a fork that nothing undoes.

Does not know what the script does.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]


# Log lines of the library are no errors of the script, but Python would print them to stderr.
SILENT = "import logging; logging.getLogger('gnsqsync').addHandler(logging.NullHandler())"


def run_script(*parts: str, timeout: float = 60.0, shows_log: bool = False) -> str:
    """Run the script, ``parts`` one after the other. Return its stdout.

    Warnings are errors. AssertionError if the script fails or writes to stderr. With ``shows_log``
    Python writes the lines of an unconfigured log to stderr, too.
    """
    parts = parts if shows_log else (SILENT, *parts)
    source = "\n".join(textwrap.dedent(part) for part in parts)
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            # Python 3.12 and later warn of a fork beside threads, which the tests of forks do.
            "-W",
            "ignore:This process:DeprecationWarning",
            "-c",
            source,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", done.stderr
    return done.stdout.strip()
