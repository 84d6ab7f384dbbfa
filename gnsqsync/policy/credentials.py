"""Refusals of a secret or of its rights, which may have been changed since the secret was sent.

Knows errors. Must not know connections, clocks, or how a secret is read.
"""

from __future__ import annotations

from gnsqsync.errors import AuthFailed, NotSent, Refused, Unauthorized

__all__ = ["are_refused"]


def are_refused(error: BaseException | None) -> bool:
    """Return True if nsqd refused the credentials of a connection, and so did nothing.

    nsqd asks its auth server at AUTH, and again at the first SUB or publish after the ttl, with the
    secret of that AUTH. It ends the connection with the refusal. ``error`` may therefore be the
    refusal, a refused publish, or a later publish that nsqd did not read.
    """
    if isinstance(error, Refused):
        error = error.error
    elif isinstance(error, NotSent):
        error = error.causes[-1] if error.causes else None
    return isinstance(error, (AuthFailed, Unauthorized))
