"""How the pictures of RDY, backoff and a stop are drawn; their command runs what they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.behaviour_pictures import SCHEMES, Picture, draw


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_picture(scheme: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = Picture("a title", "RDY", {"nsqd 1": [(0.0, 1.0), (1.0, 30.0)]}, {"stop()": 0.5})
    draw(picture, scheme, tmp_path / "one.svg")
    text = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert all(
        word in text for word in ("a title", "RDY", "nsqd 1", "stop()", SCHEMES[scheme][0].lower())
    )
