"""What becomes of a test where something that it needs is not installed; knows nothing of what."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(reason: Exception) -> NoReturn:
    """Skips the test at a desk, and fails it in CI, where everything has to be there."""
    if os.environ.get("CI") == "true":
        pytest.fail(str(reason), pytrace=False)
    pytest.skip(str(reason))
