"""A browser for these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome

from tests.support.browser import Unavailable, open_browser
from tests.support.needs import missing


@pytest.fixture(scope="package")
def browser() -> Iterator[Chrome]:
    try:
        with open_browser() as browser:
            yield browser
    except Unavailable as error:
        missing(error)
