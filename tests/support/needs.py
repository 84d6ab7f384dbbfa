"""The verdict on a test whose need is not met: skipped, or failed where somebody promised the need.

Knows pytest and the environment; knows nothing of what a test needs.
"""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

# Set to "all" by who has installed the packages of all extras.
EXTRAS = "GNSQSYNC_TEST_EXTRAS"


class NoExtra(Exception):
    """A Python package is not installed. The text names the extra of gnsqsync that brings it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"no {package}: pip install -e '.[{extra}]'")


def missing(reason: Exception) -> NoReturn:
    """Skip the test, or fail it where its need was promised.

    ``CI=true`` promises the tools of the machine (Go, Java, a browser, databases).
    ``GNSQSYNC_TEST_EXTRAS=all`` promises the packages of all extras: the README's command installs
    ``.[test]`` only, in CI, too.
    """
    if isinstance(reason, NoExtra):
        is_promised = os.environ.get(EXTRAS) == "all"
    else:
        is_promised = os.environ.get("CI") == "true"
    if is_promised:
        pytest.fail(str(reason), pytrace=False)
    pytest.skip(str(reason))
