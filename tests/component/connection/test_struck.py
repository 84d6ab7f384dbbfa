"""A signal handler that raises within a publish costs the publishes of other threads nothing.

CPython runs a handler where a function begins and where a call has returned, so the exception is
raised at each of these places in turn.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from gnsqsync import Writer
from tests.support.scripted import ScriptedNsqd

# Shorter than the time after which a lock or a turn without an owner is found.
TIMEOUT = 3.0


class Struck(BaseException):
    """Raised by the handler, as KeyboardInterrupt is."""


def struck_at(number: int, call: Callable[[], None]) -> bool:
    """Call, and raise Struck at this place of gnsqsync's connections. Return False without one."""
    left = number

    def profile(frame: Any, event: str, arg: object) -> None:
        nonlocal left
        if event in ("call", "c_return") and "/gnsqsync/connection/" in frame.f_code.co_filename:
            left -= 1
            if not left:
                sys.setprofile(None)
                raise Struck

    sys.setprofile(profile)
    try:
        call()
    except Struck:
        return True
    finally:
        sys.setprofile(None)
    return False


def test_others_publish_wherever_it_strikes() -> None:
    failures: list[tuple[int, BaseException]] = []
    with ScriptedNsqd() as nsqd, Writer(nsqd.address) as writer:
        number = 0
        is_struck = True
        while is_struck:
            number += 1
            writer.publish("t", "before", timeout=TIMEOUT)
            is_struck = struck_at(number, lambda: writer.publish("t", "struck", timeout=TIMEOUT))

            def other(place: int = number) -> None:
                try:
                    writer.publish("t", "other", timeout=TIMEOUT)
                except BaseException as error:
                    failures.append((place, error))

            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
    assert not failures
    assert number > 5
