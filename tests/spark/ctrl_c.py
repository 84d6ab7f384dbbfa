"""Ctrl-C at many moments of ``gnsqsync demo --spark``: ``python -m tests.spark.ctrl_c --runs 20``.

Each run is interrupted at another moment from its first line to about its end; it must end within
three seconds, say at most three lines, and leave neither processes nor files.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.spark import session as sessions
from tests.spark.demos import Run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0, help="the latest moment")
    arguments = parser.parse_args()
    try:
        sessions.require()
    except sessions.Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    slowest = 0.0
    for number in range(arguments.runs):
        moment = arguments.seconds * number / max(1, arguments.runs - 1)
        with tempfile.TemporaryDirectory(prefix="ctrl-c-") as folder:
            run = Run(Path(folder))
            try:
                run.wait_for("starting an nsqlookupd")
                time.sleep(moment)
                if run.family.process.poll() is not None:
                    print(f"after {moment:.1f} s it had ended", flush=True)
                    break
                seconds = run.interrupt()
            finally:
                run.close()
        slowest = max(slowest, seconds)
        print(f"after {moment:.1f} s: ended in {seconds:.2f} s", flush=True)
    print(f"all ended, the slowest in {slowest:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
