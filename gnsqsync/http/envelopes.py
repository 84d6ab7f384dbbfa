"""Bodies of nsqd's and nsqlookupd's HTTP answers: both envelopes, and errors as exceptions.

Knows JSON and the words for what is wrong. Must not know requests.
"""

from __future__ import annotations

from typing import Any

from gnsqsync.errors import HTTPError, ProtocolError
from gnsqsync.http.json_memory import TooLarge, parse_json

__all__ = ["http_error", "payload", "words"]

# Upper bound of characters of a server's own words in an error text, and so in logs.
_MAX_WORDS = 200


def payload(content: bytes, shown: str) -> Any:
    """Return the JSON of a success, without the envelope of servers before 1.0."""
    try:
        data = parse_json(content)
    except TooLarge as error:
        raise ProtocolError(f"{shown}: the answer is too large: {error}") from None
    except ValueError as error:
        raise ProtocolError(
            f"{shown}: the answer is not JSON ({error}): {content[:80]!r}; is the address right?"
        ) from None
    if isinstance(data, dict) and "status_code" in data and "data" in data:
        status = data["status_code"]
        if status != 200:
            code = data.get("status_txt")
            raise HTTPError(
                status if isinstance(status, int) else 500,
                words(code) if isinstance(code, str) and code else "UNKNOWN",
                shown,
            )
        return data["data"]
    return data


def http_error(
    status: int, reason: str, content: bytes, shown: str, not_found_hint: str = ""
) -> HTTPError:
    """Return the error for an answer that is not 2xx.

    ``not_found_hint``: why there may be no such page.
    """
    code = ""
    port: object = None
    try:
        data = parse_json(content)
    except ValueError:
        # The status line says more than a proxy's HTML page, but less than nsqd's one-line texts.
        text = content.decode("utf-8", "replace").strip()
        if text and len(text) <= 200 and "\n" not in text and not text.startswith("<"):
            code = text
    else:
        if isinstance(data, dict):
            found = data.get("message") or data.get("status_txt")
            code = found if isinstance(found, str) else ""
            port = data.get("https_port")
    code = words(code)
    error = HTTPError(status, code or words(reason or "") or "UNKNOWN", shown)
    if code == "TLS_REQUIRED":
        has_port = type(port) is int and 0 < port < 65536
        where = f"https://<host>:{port}" if has_port else "its https:// address"
        error.args = (f"{error}; this nsqd answers over HTTPS only, use {where}",)
    elif code == "NOT_FOUND" and not_found_hint:
        error.args = (f"{error}; {not_found_hint}",)
    return error


def words(text: str) -> str:
    """Return a server's words, short and on one line, because they go into logs."""
    shown = text[:_MAX_WORDS]
    return shown if shown.isprintable() else repr(shown)[1:-1]
