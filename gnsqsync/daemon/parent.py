"""The end of a daemon with the process that started it. For processes on gevent."""

from __future__ import annotations

__all__ = ["EXIT_WITH_PARENT", "wait_for_end_of_stdin"]

# First argument of a daemon that ends when its stdin ends.
EXIT_WITH_PARENT = "--exit-with-parent"


def wait_for_end_of_stdin() -> None:
    """Return when the process that holds the other end of stdin is gone."""
    from gevent.os import make_nonblocking, nb_read

    make_nonblocking(0)
    while nb_read(0, 4096):
        pass
