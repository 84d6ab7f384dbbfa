"""Which tests go to one worker of pytest-xdist together; without it nothing is changed."""

from __future__ import annotations

import os
from typing import Any

import pytest

# One worker only starts Spark, and first, or it would end long after the others.
_SPARK = "tests/spark/"


def pytest_configure() -> None:
    # They are for this run, and not for those of pytest that tests start.
    os.environ.pop("PYTEST_ADDOPTS", None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(_SPARK))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """``--dist loadfile``: the tests of a file share its servers, those on Spark a session."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class LoadFolderScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _SPARK if nodeid.startswith(_SPARK) else super()._split_scope(nodeid)

    # In the order of collection, and not by the number of tests, which says nothing of their time.
    config.option.loadscopereorder = False
    return LoadFolderScheduling(config, log)
