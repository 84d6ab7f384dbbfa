"""What the management commands have in common: output that may be closed.

Knows no single command.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from gnsqsync.output import replace_closed

__all__ = ["NSQCommand"]


class NSQCommand(BaseCommand):
    """Writes nowhere after ``>&-`` and ``2>&-``, which Django itself takes for a file."""

    def __init__(self, *args: Any, **options: Any) -> None:
        replace_closed()
        super().__init__(*args, **options)
