from __future__ import annotations

from gnsqsync.flask import NSQ

nsq = NSQ()
