"""tests.chaos.client in a process that gevent patched first, as a gevent server would be."""

from gevent import monkey

monkey.patch_all()

import sys  # noqa: E402

from tests.chaos.client import main  # noqa: E402

if __name__ == "__main__":
    main(sys.argv[1:])
