"""The HTTP APIs of nsqd and nsqlookupd, over requests, with typed answers.

Knows URLs, sessions, limits and the shapes of answers. Must not know who asks, or why.
"""

from __future__ import annotations

from gnsqsync.http.clients import LookupdHTTP, NsqdHTTP

__all__ = ["LookupdHTTP", "NsqdHTTP"]
