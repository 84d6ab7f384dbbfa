"""Unit tests have no sockets and do not sleep, unless their module says ``NEEDS = {"sockets"}``.

``NEEDS`` may hold "sockets" and "sleep".
"""

from __future__ import annotations

import socket
import sys
import time
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def no_sockets_no_sleep(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a socket or a sleep of a test, or of the package, an error."""
    needs = getattr(request.module, "NEEDS", set())
    if "sockets" not in needs:

        def refuse(*args: Any, **kwargs: Any) -> None:
            raise AssertionError("a unit test makes a socket; see tests/unit/conftest.py")

        monkeypatch.setattr(socket.socket, "__init__", refuse)
        gevent_socket = sys.modules.get("gevent.socket")
        if gevent_socket is not None:
            monkeypatch.setattr(gevent_socket.socket, "__init__", refuse)
    if "sleep" not in needs:
        sleep = time.sleep

        def checked(seconds: float) -> None:
            # The standard library sleeps too, when it waits for a child process.
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if caller.split(".")[0] in ("tests", "gnsqsync") and "support" not in caller:
                raise AssertionError("a unit test sleeps; see tests/unit/conftest.py")
            sleep(seconds)

        monkeypatch.setattr(time, "sleep", checked)
