"""Outbox and inbox on SQLAlchemy 2: messages in the transactions of an application.

For Flask and any other program; Django has its own. Needs the extra ``sqlalchemy``.
"""

from __future__ import annotations

from gnsqsync.contrib.sqlalchemy.inbox import Inbox
from gnsqsync.contrib.sqlalchemy.outbox import Outbox
from gnsqsync.outbox.outbox_rows import Lag
from gnsqsync.outbox.relay import Relay

__all__ = ["Inbox", "Lag", "Outbox", "Relay"]
