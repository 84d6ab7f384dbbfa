"""The fixture of tests that hold for both runtimes."""

from __future__ import annotations

import pytest

from gnsqsync.runtime import Runtime, choose


@pytest.fixture(params=["threads", "gevent"])
def runtime(request: pytest.FixtureRequest) -> Runtime:
    return choose(request.param)
