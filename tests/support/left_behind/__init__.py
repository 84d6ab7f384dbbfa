"""The data set that a former version left behind, and its reader.

``make.py`` wrote it: rows of outbox, inbox, schedule and tasks, and the data path of an nsqd. Each
later version must finish them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["DATA", "django_rows"]

DATA = Path(__file__).parent / "data"


def django_rows() -> dict[str, Any]:
    """Return ``migrations`` (app: the newest one) and ``tables`` (table: rows)."""
    found: dict[str, Any] = json.loads((DATA / "django.json").read_text(encoding="utf-8"))
    return found
