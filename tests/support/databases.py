"""The shared start of the database servers of a test session, and the reason if it fails.

Knows no database.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TypeVar

from tests.support.needs import missing

__all__ = ["Unavailable", "installed"]

Server = TypeVar("Server")


class Unavailable(Exception):
    """The machine does not have the server's programs, or Python does not have its driver."""


def installed(driver: str, make: Callable[[], Server]) -> Server:
    """Return the server that ``make`` returns, with its driver installed.

    If the server or the driver is missing, the test is skipped on a developer's machine, and fails
    in CI.
    """
    try:
        if find_spec(driver) is None:
            raise Unavailable(f"{driver} is not installed")
        return make()
    except Unavailable as error:
        missing(error)
