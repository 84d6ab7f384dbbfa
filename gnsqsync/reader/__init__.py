"""Consuming: what a user constructs, and what a started Reader is made of.

Knows connections, nsqlookupds and handlers; it publishes dead letters, so it knows the Writer, too.
Must not know signals, processes or a framework.
"""

from __future__ import annotations

from gnsqsync.reader.group import ReaderGroup
from gnsqsync.reader.reader import Reader
from gnsqsync.reader.topic_group import TopicGroup

__all__ = ["Reader", "ReaderGroup", "TopicGroup"]
