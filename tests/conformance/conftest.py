"""The waiting rows start with the first conformance test and are collected last."""

from __future__ import annotations

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


@pytest.fixture(scope="session", autouse=True)
def waiting_rows(request: pytest.FixtureRequest, server_pool: Pool) -> Iterator[WaitingRows]:
    """The threads of the rows that wait; autouse, so that they start as early as possible."""
    rows = WaitingRows(request.session.items, server_pool)
    rows.start()
    yield rows
    rows.close()


@pytest.fixture
def small(site: Site) -> Server:
    """An nsqd with low limits: see SMALL."""
    return site.nsqd(*SMALL)
