"""Runs a script in an interpreter of its own: for what cannot be undone, like patching or a fork.

Knows nothing of what the script does.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]


# What the library logs is no error of the interpreter, and Python would print it to stderr.
SILENT = "import logging; logging.getLogger('gnsqsync').addHandler(logging.NullHandler())"


def run_script(*parts: str, timeout: float = 60.0, shows_log: bool = False) -> str:
    """What the script, ``parts`` one after the other, printed to stdout.

    Warnings are errors. AssertionError when it fails or writes anything to stderr; with
    ``shows_log`` that is also what Python shows of a log that nobody has configured.
    """
    parts = parts if shows_log else (SILENT, *parts)
    source = "\n".join(textwrap.dedent(part) for part in parts)
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            # Python 3.12 and later dislike a fork beside threads; the tests of forks know.
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
