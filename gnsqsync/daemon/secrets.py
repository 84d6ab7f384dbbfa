"""Addresses and URLs without secrets, for an answer of /config, a page, or the log.

Knows the places of secrets in a URL. Knows the endings of options' names, and no option.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["server_of", "shown", "shown_option"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# Characters that end the part with user and password in a well-formed address.
_AFTER_USER = re.compile(r"[?#]")


def shown(text: str) -> str:
    """Return an address or a URL without user, password, query and fragment.

    A password may have any character, so text that may belong to it is left out, too.
    """
    found = _SCHEME.match(text)
    scheme = found[0] if found else ""
    rest = text[len(scheme) :]
    if not scheme and "@" not in rest.partition("/")[0]:
        # The text is a path, a format of names, or host:port.
        return text
    before, at, after = rest.rpartition("@")
    if at and _AFTER_USER.search(before):
        return f"{scheme}..."
    return scheme + _AFTER_USER.split(after, maxsplit=1)[0]


def shown_option(name: str, value: Any) -> Any:
    """Return the value of an option without secrets. The path of an endpoint is a secret."""
    if isinstance(value, (list, tuple)):
        return type(value)(shown_option(name, item) for item in value)
    if not isinstance(value, str):
        return value
    return server_of(value) if name.endswith("_endpoint") else shown(value)


def server_of(url: str) -> str:
    """Return scheme, host and port of a URL whose path may be a secret, as a webhook's is."""
    text = shown(url)
    found = _SCHEME.match(text)
    scheme = found[0] if found else ""
    return scheme + text[len(scheme) :].partition("/")[0]
