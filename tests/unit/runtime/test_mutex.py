"""A mutex is free after whatever ended the block that took it."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from gnsqsync.runtime import Runtime


class Struck(BaseException):
    """Raised by a signal handler, as KeyboardInterrupt is."""


def is_free(mutex: Any) -> bool:
    """Return True if another thread can take the mutex."""
    taken: list[bool] = []

    def take() -> None:
        taken.append(mutex.acquire(blocking=False))
        if taken == [True]:
            mutex.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return taken == [True]


def strike_as_it_is_taken(mutex: Any) -> None:
    """Take the mutex; a handler raises Struck as soon as the lock is taken."""

    def profile(frame: Any, event: str, arg: object) -> None:
        if event == "c_return":
            sys.setprofile(None)
            raise Struck

    sys.setprofile(profile)
    try:
        with mutex:
            pytest.fail("no handler ran before the block")
    finally:
        sys.setprofile(None)


# Older Pythons run no handler between the lock and the block.
@pytest.mark.skipif(sys.version_info < (3, 14), reason="Python 3.14 runs a handler there")
def test_a_handler_that_raises_while_the_mutex_is_taken_leaves_it_free(runtime: Runtime) -> None:
    mutex = runtime.mutex()
    with pytest.raises(Struck):
        strike_as_it_is_taken(mutex)
    assert is_free(mutex)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="Python 3.14 runs a handler there")
def test_the_owner_keeps_a_mutex_that_a_handler_takes_again_in_vain(runtime: Runtime) -> None:
    mutex = runtime.mutex()
    with mutex:
        with pytest.raises(Struck):
            strike_as_it_is_taken(mutex)
        assert not is_free(mutex)
    assert is_free(mutex)


def test_an_exception_in_the_block_leaves_the_mutex_free(runtime: Runtime) -> None:
    mutex = runtime.mutex()
    with pytest.raises(Struck), mutex:
        raise Struck
    assert is_free(mutex)
