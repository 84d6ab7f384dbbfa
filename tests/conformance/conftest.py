"""The waiting rows start with the first test that may, and are collected last."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.rows import SMALL, WaitingRows, waiting_body
from tests.support.servers import Pool, Server, Site

HERE = Path(__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = [place for place, item in enumerate(items) if HERE in item.path.parents]
    # sorted() is stable: the rows keep their order on either side.
    rows = sorted((items[place] for place in places), key=lambda item: bool(waiting_body(item)))
    for place, item in zip(places, rows, strict=True):
        items[place] = item


@pytest.fixture(scope="session")
def waiting_rows(server_pool: Pool) -> Iterator[WaitingRows]:
    """The threads of the rows that wait."""
    rows = WaitingRows(server_pool)
    yield rows
    rows.close()


@pytest.fixture(scope="module", autouse=True)
def _waiting_rows_start(request: pytest.FixtureRequest, waiting_rows: WaitingRows) -> None:
    """Autouse, so that they start as early as possible."""
    items = request.session.items
    if os.environ.get("PYTEST_XDIST_WORKER"):
        # The other files go to whichever worker is free.
        items = [item for item in items if item.path == request.path]
    waiting_rows.start(items)


@pytest.fixture
def small(site: Site) -> Server:
    """An nsqd with low limits: see SMALL."""
    return site.nsqd(*SMALL)
