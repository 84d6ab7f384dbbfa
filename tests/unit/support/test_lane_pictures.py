"""The pictures of who tells whom what: those of the pages are what the command draws now."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.support.lane_pictures import PICTURES, SCHEMES, draw
from tests.support.texts import DOCS


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_picture_is_up_to_date(name: str, scheme: str) -> None:
    drawn = draw(PICTURES[name], scheme)
    kept = DOCS / "_static" / "lanes" / f"{name}{scheme}.svg"
    assert kept.read_text(encoding="utf-8") == drawn
    texts = [node.text for node in ElementTree.fromstring(drawn).iter() if node.text]
    assert all(step.text in texts for step in PICTURES[name].steps)
