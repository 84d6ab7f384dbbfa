"""Publishing: what a user constructs, and what a started Writer is made of.

Knows connections and nsqlookupds. Must not know the Reader.
"""

from __future__ import annotations

from gnsqsync.writer.writer import Writer

__all__ = ["Writer"]
