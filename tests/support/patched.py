"""Pytest in a process that gevent patched first: ``python -m tests.support.patched [pytest args]``.

As in a gevent server, everything else is imported after the patch.
"""

from gevent import monkey

monkey.patch_all()

import os  # noqa: E402
import sys  # noqa: E402

import pytest  # noqa: E402

if __name__ == "__main__":
    os.environ["GNSQSYNC_TEST_PATCHED"] = "1"
    # One process: what starts the workers of pytest-xdist is not made for a patched one.
    sys.exit(pytest.main(["-n", "0", *sys.argv[1:]]))
