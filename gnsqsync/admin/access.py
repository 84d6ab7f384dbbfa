"""Who may act, and from which pages. Knows requests as WSGI has them, and nothing of actions."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from gnsqsync.admin.options import AdminOptions

__all__ = ["LETTERS", "MAY_ACT", "USER", "Access"]

# What an application around this one may put into the environ: a bool, whether its user may act,
# and the user's name. No header of a request can.
MAY_ACT = "gnsqsync.admin.may_act"
USER = "gnsqsync.admin.user"
# A function of it: the URL of its own page for the dead letters in a topic, or "".
LETTERS = "gnsqsync.admin.letters_page"

# What proxies add to a request.
_OF_PROXIES = ("HTTP_FORWARDED", "HTTP_X_FORWARDED_FOR", "HTTP_X_REAL_IP", "HTTP_VIA")


class Access:
    """The rules of one nsqadmin. A method returns why something is refused, or ""."""

    def __init__(self, options: AdminOptions) -> None:
        self._options = options
        self._header = "HTTP_" + options.acl_http_header.upper().replace("-", "_")
        self._config_network = options.config_network()

    def to_act(self, environ: Mapping[str, Any]) -> str:
        """Whether this user may change anything."""
        if self._options.read_only:
            return "this nsqadmin is read-only"
        if MAY_ACT in environ:
            return "" if environ[MAY_ACT] else "your user may look only"
        if self._options.admin_user:
            # WSGI has a character per byte.
            user = environ.get(self._header, "").encode("latin-1").decode("utf-8", "replace")
            if user in self._options.admin_user:
                return ""
            return f"{repr(user) if user else 'a visitor without a name'} is no --admin-user"
        # Behind a proxy every peer is on loopback, and a foreign page may have given its own name
        # the address 127.0.0.1.
        is_here = _is_loopback(environ.get("REMOTE_ADDR", "")) and _is_loopback(_host(environ))
        if is_here and not any(name in environ for name in _OF_PROXIES):
            return ""
        return "without --admin-user actions are taken from this machine only"

    def to_post(self, environ: Mapping[str, Any]) -> str:
        """Whether the request comes from a page of another site. A script sends no such header."""
        site = environ.get("HTTP_SEC_FETCH_SITE")
        if site == "same-origin":
            # The browser knows, where a proxy may have changed the Host.
            return ""
        if site not in (None, "none"):
            return "the request comes from a page of another site"
        origin = environ.get("HTTP_ORIGIN")
        if origin is not None and origin.partition("://")[2] != environ.get("HTTP_HOST"):
            return f"the request comes from a page of {origin!r}"
        return ""

    def to_config(self, environ: Mapping[str, Any]) -> str:
        """Whether /config is for this peer; headers that proxies set do not matter."""
        if MAY_ACT in environ:
            return self.to_act(environ)
        if self._config_network is None:
            return ""
        peer = environ.get("REMOTE_ADDR", "")
        if _is_loopback(peer) and not _is_loopback(_host(environ)):
            # As in to_act: a foreign name, or a proxy before others.
            return "this machine is addressed by another name"
        try:
            if ipaddress.ip_address(peer) in self._config_network:
                return ""
        except ValueError:  # a unix socket
            pass
        return "not in --allow-config-from-cidr"


def _host(environ: Mapping[str, Any]) -> str:
    """The host that the browser was told, without its port."""
    host: str = environ.get("HTTP_HOST", "")
    name, colon, _ = host.rpartition(":")
    return (name if colon and not host.endswith("]") else host).strip("[]")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
