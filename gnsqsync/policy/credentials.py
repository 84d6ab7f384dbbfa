"""Refusals of a secret or of its rights, which may have been changed since the secret was sent.

Knows errors. Must not know connections, clocks, or how a secret is read.

``are_refused`` looks at the outcome of a publish or dial, and ``fail_tls`` at a failed TLS
handshake.

Surprise: the refusal may arrive with a later publish. nsqd ends the connection when it refuses, and
so does not read what follows.
"""

from __future__ import annotations

import ssl

from gnsqsync.errors import AuthFailed, NegotiationFailed, NotSent, Refused, Unauthorized

__all__ = ["are_refused", "fail_tls"]


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


def fail_tls(error: BaseException) -> bool:
    """Return True if a TLS handshake failed, as by a certificate of either side.

    Certificates are replaced while programs run: nsqd's, and the files here, which each dial reads.
    """
    return isinstance(error, NegotiationFailed) and isinstance(error.__cause__, ssl.SSLError)
