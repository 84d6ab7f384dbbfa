"""Addresses of nsqd and nsqlookupd as users write them: hosts, ports, unix sockets, URLs.

Knows their forms and the default ports. Resolves and connects nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias
from urllib.parse import SplitResult, urlsplit

from gnsqsync.errors import ConfigError

__all__ = [
    "NSQD_HTTP_PORT",
    "NSQD_TCP_PORT",
    "NSQLOOKUPD_HTTP_PORT",
    "Address",
    "AddressLike",
    "NsqdAddress",
    "UrlLike",
    "http_urls",
    "parse_address",
    "parse_addresses",
]

NSQD_TCP_PORT = 4150
NSQD_HTTP_PORT = 4151
NSQLOOKUPD_HTTP_PORT = 4161
# Path of a question to nsqlookupd, which other clients want in the address of an nsqlookupd.
_LOOKUP = "/lookup"


class Address(NamedTuple):
    """Address of an nsqd: a host and port, or the path of a unix socket (port 0)."""

    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


# An nsqd: ``host``, ``host:port``, ``[ipv6]:port``, ``unix:///path`` or a (host, port) pair.
NsqdAddress: TypeAlias = str | tuple[str, int] | Address
# Several nsqds or a single one. A str may hold several with commas.
AddressLike: TypeAlias = NsqdAddress | Iterable[NsqdAddress]
# Several nsqlookupds or a single one: ``host``, ``host:port`` or an http(s) URL; a str as above.
UrlLike: TypeAlias = str | Iterable[str]


def parse_address(text: object, default_port: int = NSQD_TCP_PORT) -> Address:
    """Parse ``host``, ``host:port``, ``[v6]:port``, ``unix:///path`` or a (host, port) pair.

    Raises ConfigError for anything else, with what would be right.
    """
    if isinstance(text, Address):
        return text
    if isinstance(text, tuple) and len(text) == 2:
        host, port = text
        if isinstance(host, str) and host and isinstance(port, int) and 0 < port < 65536:
            return Address(host, port)
    form = "it must be host, host:port, [ipv6]:port or unix:///path"
    if not isinstance(text, str):
        raise ConfigError(f"address is {text!r}; {form}")
    if text.startswith("unix://"):
        path = text[len("unix://") :]
        if not path.startswith("/"):
            raise ConfigError(f"address {text!r} has no absolute path; write unix:///path")
        return Address("", 0, path)
    if "://" in text:
        raise ConfigError(
            f"address {_shown(text)} is a URL; nsqd's TCP address has no scheme, write host:port"
        )
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ConfigError(f"address {_shown(text)} is not valid; {form}")
        port_text = rest[1:] if rest else str(default_port)
    elif text.count(":") > 1:
        raise ConfigError(f"address {_shown(text)} is not valid; put an IPv6 address in brackets")
    else:
        host, colon, port_text = text.partition(":")
        if not colon:
            port_text = str(default_port)
    if not host or host != host.strip() or any(c in host for c in " /\t\n,"):
        raise ConfigError(f"address {_shown(text)} has no valid host; {form}")
    if not port_text.isascii() or not port_text.isdigit() or not 0 < int(port_text) < 65536:
        raise ConfigError(f"address {_shown(text)} has no valid port; allowed is 1 to 65535")
    return Address(host, int(port_text))


def parse_addresses(value: object, default_port: int = NSQD_TCP_PORT) -> tuple[Address, ...]:
    """Parse one address or an iterable; a str may hold several with commas. Drop doubles."""
    is_pair = isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], int)
    parts = [value] if is_pair or isinstance(value, Address) else _parts(value, "addresses")
    return tuple(dict.fromkeys(parse_address(part, default_port) for part in parts))


def _parts(value: object, what: str) -> Iterable[object]:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")] if value else []
    if not isinstance(value, Iterable):
        raise ConfigError(f"{what} are {value!r}; give a str or a list of them")
    return value


def http_urls(value: object, default_port: int = NSQLOOKUPD_HTTP_PORT) -> tuple[str, ...]:
    """Return URLs for one HTTP address or an iterable: ``host``, ``host:port`` or http(s) URLs.

    Scheme, path, query and user info of a URL are kept. The address of an nsqlookupd may end with
    ``/lookup``, as in pynsq, go-nsq and nsqjs; all questions then go beside that path. Raises
    ConfigError for an invalid address.
    """
    parts = _parts(value, "HTTP addresses")
    return tuple(dict.fromkeys(_http_url(part, default_port) for part in parts))


def _without_lookup(url: str) -> str:
    """Return the URL without a last ``/lookup`` of its path. A query stays."""
    before, question, query = url.partition("?")
    base = before.rstrip("/").removesuffix(_LOOKUP)
    # Unchanged without such a path; and a host may be called lookup.
    if base == before.rstrip("/") or base.endswith(":/"):
        return url
    if "://" not in base:
        base = f"http://{parse_address(base, NSQLOOKUPD_HTTP_PORT)}"
    return f"{base}{question}{query}"


def _shown(url: str) -> str:
    """Return an address for an error text, without user info and query, as they may be secret."""
    before, at, rest = url.rpartition("@")
    scheme, colon, _ = before.partition("://")
    shown = f"{scheme if colon else ''}{colon}...@{rest}" if at else url
    path, question, _ = shown.partition("?")
    return repr(f"{path}?..." if question else path)


def _http_url(text: object, default_port: int) -> str:
    if not isinstance(text, str) or not text:
        raise ConfigError(f"HTTP address is a {type(text).__name__}; it must be host:port or a URL")
    if default_port == NSQLOOKUPD_HTTP_PORT:
        text = _without_lookup(text)
    if "://" not in text:
        return f"http://{parse_address(text, default_port)}"
    try:
        parts: SplitResult = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        # The error's own text quotes the port, which may be part of a password with a slash.
        raise ConfigError(f"HTTP address {_shown(text)} is not valid; is it quoted?") from None
    if parts.scheme == "unix":
        raise ConfigError(f"HTTP address {text!r} is a unix socket; only NsqdHTTP can use one")
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise ConfigError(f"HTTP address {_shown(text)} is not valid; write http://host:port")
    return text
