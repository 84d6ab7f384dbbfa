"""Bodies of nsqd's and nsqlookupd's HTTP answers: both envelopes, and errors as exceptions.

Knows JSON and the words for what is wrong. Knows nothing of requests.
"""

from __future__ import annotations

from typing import Any

from gnsqsync.errors import HTTPError, ProtocolError
from gnsqsync.http.json_memory import TooLarge, parse_json

__all__ = ["http_error", "payload", "words"]

# Characters of a server's own words that go into an error's text, and so into logs.
_MAX_WORDS = 200


def payload(content: bytes, shown: str) -> Any:
    """The JSON of a success; the envelope of servers before 1.0 is taken off."""
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
    """For an answer that is not 2xx. ``not_found_hint``: why there may be no such page."""
    code = ""
    port: object = None
    try:
        data = parse_json(content)
    except ValueError:
        # A proxy's HTML page says less than the status line; nsqd's one-line texts say more.
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
    """A server's words on one line and not too many: they go into logs."""
    shown = text[:_MAX_WORDS]
    return shown if shown.isprintable() else repr(shown)[1:-1]
