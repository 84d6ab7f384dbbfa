"""tests.chaos.soak's client in a process that gevent patched first."""

from gevent import monkey

monkey.patch_all()

import sys  # noqa: E402

from tests.chaos.soak import client  # noqa: E402

if __name__ == "__main__":
    client(sys.argv[1:])
