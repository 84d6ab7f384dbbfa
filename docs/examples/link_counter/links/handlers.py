"""Counts clicks: run by ``flask --app links nsq consume``."""

from __future__ import annotations

from gnsqsync import Message
from links import database
from links.extensions import nsq


# What a killed consumer had comes to the next one after so many seconds, and not after a minute.
@nsq.handler("clicks", "count", msg_timeout=5.0)
def count(message: Message) -> None:
    """NSQ may deliver a click twice; its id is in the table then, and nothing happens."""
    click = message.json()
    database.add_click(click["id"], click["code"])
