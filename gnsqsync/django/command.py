"""What the management commands have in common: output that may be closed.

Knows no single command.
"""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand

from gnsqsync.output import nowhere

__all__ = ["NSQCommand"]


class NSQCommand(BaseCommand):
    """Writes nowhere after ``>&-`` and ``2>&-``, which Django itself takes for a file."""

    def __init__(self, stdout: Any = None, stderr: Any = None, **options: Any) -> None:
        super().__init__(
            stdout=stdout or sys.stdout or nowhere(),
            stderr=stderr or sys.stderr or nowhere(),
            **options,
        )
