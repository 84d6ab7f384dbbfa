"""What spark-submit runs: the words behind it are those of ``gnsqsync``, as ``archive --help``."""

from __future__ import annotations

import sys

from gnsqsync.cli import main

if __name__ == "__main__":
    sys.exit(main())
