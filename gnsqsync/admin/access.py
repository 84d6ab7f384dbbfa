"""The rights of visitors, and the pages that may send requests. Knows WSGI requests, no actions."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from gnsqsync.admin.options import AdminOptions

__all__ = ["LETTERS", "MAY_ACT", "RECORD", "USER", "Access"]

# Keys of the environ that an application around nsqadmin may set, and that no header can set:
# True if its user may act, and the user's name.
MAY_ACT = "gnsqsync.admin.may_act"
USER = "gnsqsync.admin.user"
# Key of a function of that application: topic -> URL of its page for the dead letters, or "".
LETTERS = "gnsqsync.admin.letters_page"
# Key of a function of that application: (verb, object) of each action, called before it begins.
RECORD = "gnsqsync.admin.record"

# Headers that proxies add to a request, and the prefix of further ones.
_OF_PROXIES = {
    "HTTP_FORWARDED",
    "HTTP_VIA",
    "HTTP_X_REAL_IP",
    "HTTP_X_CLIENT_IP",
    "HTTP_X_CLUSTER_CLIENT_IP",
    "HTTP_X_ORIGINAL_FORWARDED_FOR",
    "HTTP_X_SCHEME",
    "HTTP_TRUE_CLIENT_IP",
    "HTTP_CF_CONNECTING_IP",
}
_BEGINS_OF_PROXIES = "HTTP_X_FORWARDED_"


class Access:
    """The rules of one nsqadmin. A method returns the reason to refuse a request, or ""."""

    def __init__(self, options: AdminOptions) -> None:
        self._options = options
        self._header = "HTTP_" + options.acl_http_header.upper().replace("-", "_")
        self._config_network = options.config_network()

    def to_act(self, environ: Mapping[str, Any]) -> str:
        """Return why this user may change nothing, or ""."""
        if self._options.read_only:
            return "this nsqadmin is read-only"
        return self._rights(environ)

    def _rights(self, environ: Mapping[str, Any]) -> str:
        """Return why this user would change nothing on an nsqadmin that is not read-only, or ""."""
        if MAY_ACT in environ:
            return "" if environ[MAY_ACT] else "your user may look only"
        if self._options.admin_user:
            # WSGI strings have one character for each byte.
            user = environ.get(self._header, "").encode("latin-1").decode("utf-8", "replace")
            if user in self._options.admin_user:
                return ""
            return f"{repr(user) if user else 'a visitor without a name'} is no --admin-user"
        # The Host is checked, too: a foreign site may give its own name the address 127.0.0.1.
        is_here = _is_loopback(environ.get("REMOTE_ADDR", "")) and _is_loopback(_host(environ))
        if is_here and not self._is_proxied(environ):
            return ""
        return "without --admin-user actions are taken from this machine only"

    def _is_proxied(self, environ: Mapping[str, Any]) -> bool:
        """Return True if the request came through a proxy, whose visitors are on other machines.

        nginx adds no header by default, but speaks HTTP/1.0. A browser sends the URL of its page,
        whatever Host the proxy sets.
        """
        pages = (environ.get(name) for name in ("HTTP_ORIGIN", "HTTP_REFERER"))
        return (
            environ.get("SERVER_PROTOCOL") == "HTTP/1.0"
            or self._header in environ
            or any(name in _OF_PROXIES or name.startswith(_BEGINS_OF_PROXIES) for name in environ)
            or any(not _is_loopback(_host_of(page)) for page in pages if page)
        )

    def to_post(self, environ: Mapping[str, Any]) -> str:
        """Return the reason to refuse a request from a page of another site, or "".

        A script sends none of these headers.
        """
        site = environ.get("HTTP_SEC_FETCH_SITE")
        if site == "same-origin":
            # The browser's word counts more than the Host, which a proxy may have changed.
            return ""
        if site not in (None, "none"):
            return "the request comes from a page of another site"
        origin = environ.get("HTTP_ORIGIN")
        if origin is not None and origin.partition("://")[2] != environ.get("HTTP_HOST"):
            return f"the request comes from a page of {origin!r}"
        return ""

    def to_config(self, environ: Mapping[str, Any], *, changes: bool) -> str:
        """Return the reason to refuse /config, which needs the rights of an action, or "".

        ``changes``: False for a GET, which a read-only nsqadmin allows.
        """
        why = self._rights(environ)
        if not why and changes:
            why = self.to_act(environ) or self.to_post(environ)
        if why or MAY_ACT in environ or self._config_network is None:
            return why
        peer = environ.get("REMOTE_ADDR", "")
        if _is_loopback(peer) and not _is_loopback(_host(environ)):
            # The Host is a foreign site's name, or the peer is a proxy (see ``_rights``).
            return "this machine is addressed by another name"
        try:
            if ipaddress.ip_address(peer) in self._config_network:
                return ""
        except ValueError:  # A unix socket has no address.
            pass
        return "not in --allow-config-from-cidr"


def _host(environ: Mapping[str, Any]) -> str:
    """Return the host of the Host header, without its port."""
    host: str = environ.get("HTTP_HOST", "")
    name, colon, _ = host.rpartition(":")
    return (name if colon and not host.endswith("]") else host).strip("[]")


def _host_of(page: str) -> str:
    """Return the host in the URL of a page, or "" if it is no URL."""
    try:
        return urlsplit(page).hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
