"""What Writers tell of their connections. Decides nothing; called outside all locks."""

from __future__ import annotations

import logging

from gnsqsync.connection.connection import Connection
from gnsqsync.errors import NSQError
from gnsqsync.runtime.troubles import AWAY, duration, kind_of, more, troubles, used_by

__all__ = ["connected", "dial_failed", "fields", "lost"]

log: logging.Logger = logging.getLogger("gnsqsync.writer")


def fields(connection: Connection) -> dict[str, str]:
    """For ``extra``."""
    return {"nsqd": connection.nsqd_address}


def connected(connection: Connection) -> None:
    address = connection.nsqd_address
    over = troubles().ended(address)
    if over is not None:
        # A Writer dials for a publish: nobody may have looked for long.
        log.warning(
            "a Writer is connected to %s again, which was away for %s at most%s",
            address,
            duration(over.seconds),
            used_by(over, "consumers"),
            extra=fields(connection),
        )
    log.info("connected to %s", address, extra=fields(connection))


def dial_failed(connection: Connection, error: NSQError) -> None:
    if connection.closing:
        log.debug("%s", error, extra=fields(connection))
        return
    tell = troubles().began(connection.nsqd_address, kind_of(error, "a Writer"))
    if tell is not None:
        next_step = "it is dialled again"
        if not error.retriable:
            next_step = "trying again will not help before that is changed"
        log.log(
            logging.WARNING if error.retriable else logging.ERROR,
            "a Writer: %s; %s%s%s",
            error,
            next_step,
            used_by(tell, "consumers"),
            more(tell),
            extra=fields(connection),
        )


def lost(connection: Connection, reason: Exception) -> None:
    if connection.closing:
        log.debug("%s closed as asked", connection.nsqd_address, extra=fields(connection))
        return
    tell = troubles().began(connection.nsqd_address, AWAY)
    if tell is not None:
        log.warning(
            "a Writer: lost %s: %s; the next publish dials it%s%s",
            connection.nsqd_address,
            reason,
            used_by(tell, "consumers"),
            more(tell),
            extra=fields(connection),
        )
