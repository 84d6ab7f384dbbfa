"""The program that spark-submit runs. Its arguments are those of ``gnsqsync spark``, such as
``archive --help``."""

from __future__ import annotations

import sys

from gnsqsync.cli import main

if __name__ == "__main__":
    sys.exit(main(["spark", *sys.argv[1:]]))
