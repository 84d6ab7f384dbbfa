"""Discovery: the nsqds and topics that nsqlookupds list, for readers and writers alike.

Knows one poll thread for each nsqlookupd and question. Must not dial or close anything.
"""

from __future__ import annotations

from gnsqsync.discovery.lookups import Lookups
from gnsqsync.discovery.polling import Discovery

__all__ = ["Discovery", "Lookups"]
