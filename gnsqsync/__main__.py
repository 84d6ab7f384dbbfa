"""``python -m gnsqsync``: the console script without an installed script."""

from __future__ import annotations

import sys

from gnsqsync.cli import main

if __name__ == "__main__":
    sys.exit(main())
