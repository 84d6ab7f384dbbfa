"""Claims of handlers whose servers an application's settings name.

Knows settings. Knows no framework. The Reader has the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gnsqsync.process.settings import ClientSettings
from gnsqsync.reader.claims import (
    Claim,
    check_claims,
    is_same_statement,
    problems_of_claims,
    servers_of,
)

__all__ = ["Claim", "check_claims", "claim_of", "is_same_statement", "problems_of_claims"]


def claim_of(
    settings: ClientSettings | None,
    topic: str,
    channel: str,
    handler: Callable[..., object],
    own: Mapping[str, Any],
    *,
    where: str,
    settings_name: str = "",
    owner: object = None,
) -> Claim:
    """Return the claim of a handler with the options ``own``.

    Addresses of nsqds count in addition to those of nsqlookupds, which list these nsqds.
    ``settings_name``: handlers with the same name share a cluster, even without an address.
    """
    options = own if settings is None else {**settings.options, **own}
    servers = frozenset() if settings is None else servers_of(settings.nsqd, settings.lookupd)
    return Claim(
        topic=topic,
        channel=channel,
        where=where,
        handler=handler,
        servers=servers | {f"settings {settings_name}"},
        shared=bool(own.get("shared", False)),
        dead_letter_topic=options.get("dead_letter_topic"),
        owner=owner,
    )
