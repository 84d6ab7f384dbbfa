"""Pytest in a process that gevent patched first: ``python -m tests.support.patched [pytest args]``.

Other modules are imported after the patch, as in a gevent server.
"""

from gevent import monkey

monkey.patch_all()

import os  # noqa: E402
import sys  # noqa: E402

import pytest  # noqa: E402

if __name__ == "__main__":
    os.environ["GNSQSYNC_TEST_PATCHED"] = "1"
    # The tests run in one process, because pytest-xdist cannot start workers in a patched one.
    sys.exit(pytest.main(["-n", "0", *sys.argv[1:]]))
