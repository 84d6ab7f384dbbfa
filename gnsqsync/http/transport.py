"""HTTP request to nsqd or nsqlookupd: the URL, the session, the timeouts, the errors.

Knows requests and both answer envelopes. Must not know single endpoints (see clients.py).
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import requests
import urllib3.exceptions

from gnsqsync._version import __version__
from gnsqsync.addresses import Address, NsqdAddress, http_urls, parse_address
from gnsqsync.errors import (
    ClosedError,
    ConfigError,
    ConnectionLost,
    NSQError,
    ProtocolError,
)
from gnsqsync.http.envelopes import http_error, payload, words
from gnsqsync.http.json_memory import parse_json
from gnsqsync.http.limits import SLOWEST_ANSWER, LimitedAdapter, watch_redirects
from gnsqsync.keywords import checks_names
from gnsqsync.options import check_duration, check_tls_files, environment_bundle
from gnsqsync.runtime import choose
from gnsqsync.runtime.call import Call
from gnsqsync.runtime.dial import LONGEST

if TYPE_CHECKING:
    from gnsqsync.runtime.base import RuntimeLike

__all__ = ["Answer", "HTTPClient", "HTTPKeywords", "Line", "authorities", "https_port"]

ACCEPT = "application/vnd.nsq; version=1.0"

# Redirects of one request. requests alone would follow thirty.
_MOST_REDIRECTS = 5

# Upper bound in bytes of an answer. A larger one is not from nsqd or nsqlookupd. The memory of its
# JSON is limited in json_memory.
MAX_ANSWER = 32 * 1024 * 1024

Self = TypeVar("Self", bound="HTTPClient")


class Answer(NamedTuple):
    """An HTTP answer. ``url``: the URL that was asked, in the form to show."""

    status: int
    reason: str
    content_type: str
    content: bytes
    url: str
    date: str = ""


class Line(NamedTuple):
    """A session, and the call to which its connections belong."""

    session: requests.Session
    call: Call


class HTTPKeywords(TypedDict, total=False):
    """Keywords that NsqdHTTP and LookupdHTTP share, those of HTTPClient. All are optional."""

    connect_timeout: float
    authorization: str | None
    session: requests.Session | None
    trust_env: bool
    tls_ca_file: str | None
    tls_cert_file: str | None
    tls_key_file: str | None
    tls_verify: bool
    runtime: RuntimeLike | None


class HTTPClient:
    """Client of one server, the base of NsqdHTTP and LookupdHTTP.

    Nothing is connected before the first call. After a fork the child starts with no session. An
    nsqd with ``--tls-required`` answers http with 403 and its ``https_port``. The same request is
    then sent there, verified as any https.

    NsqdHTTP documents the arguments.

    Threads:
        Any thread may call; a session is used by one call at a time.
    """

    default_port = 0
    # Hint after an answer that a TCP port of the server gives. Such a port closes with the request
    # unread, so the client may see only a reset, which has other causes, too: hence "may".
    _port_hint = ""
    # Hint after an answer of the other kind of server, which has no such page.
    _kind_hint = ""
    # True if the server can listen on a unix socket.
    has_unix_sockets = False

    @checks_names
    def __init__(
        self,
        address: NsqdAddress,
        *,
        timeout: float,
        connect_timeout: float = 1.0,
        authorization: str | None = None,
        session: requests.Session | None = None,
        trust_env: bool = False,
        tls_ca_file: str | None = None,
        tls_cert_file: str | None = None,
        tls_key_file: str | None = None,
        tls_verify: bool = True,
        runtime: RuntimeLike | None = None,
    ) -> None:
        self._socket_path = ""
        if isinstance(address, Address):
            address = str(address)
        if isinstance(address, str) and address.startswith("unix:"):
            self._socket_path = self._check_socket(address, session)
            # Each request needs a host, which is not looked up.
            address = "http://localhost"
        self._url = _check_address(address, self.default_port)
        self._timeout = min(check_duration("timeout", timeout, 0.001), LONGEST)
        self._connect_timeout = min(
            check_duration("connect_timeout", connect_timeout, 0.001), LONGEST
        )
        self._headers = {
            "Accept": ACCEPT,
            # Neither server compresses, and a small answer of another could become a huge one.
            "Accept-Encoding": "identity",
            "User-Agent": f"gnsqsync/{__version__}",
        }
        if authorization is not None:
            self._headers["Authorization"] = _bearer(authorization, self._url)
        if session is not None and not isinstance(session, requests.Session):
            raise ConfigError(f"session is {type(session).__name__}; give a requests.Session")
        self._session = session
        self._trust_env = trust_env
        check_tls_files(
            tls_ca_file=tls_ca_file, tls_cert_file=tls_cert_file, tls_key_file=tls_key_file
        )
        self._verify = authorities(tls_ca_file, tls_verify)
        self._cert: Any = (tls_cert_file, tls_key_file) if tls_key_file else tls_cert_file
        self._runtime = runtime
        self._https_keywords: dict[str, Any] = {
            "timeout": timeout,
            "connect_timeout": connect_timeout,
            "authorization": authorization,
            "session": session,
            "trust_env": trust_env,
            "tls_ca_file": tls_ca_file,
            "tls_cert_file": tls_cert_file,
            "tls_key_file": tls_key_file,
            "tls_verify": tls_verify,
        }
        # HTTPS clients of the same server by port, once it has said that it wants HTTPS.
        self._https: dict[int, HTTPClient] = {}
        self._pid = os.getpid()
        self._closed = False
        # Sessions without a call. No lock: list.pop and list.append are atomic.
        self._idle: list[Line] = []
        # Calls under way. No lock: set.add and set.discard are atomic, too.
        self._calls: set[Call] = set()
        # True once ``cut`` was called.
        self._is_cut = False

    @property
    def url(self) -> str:
        """The server's URL without user info and query."""
        return self._join("", {})[1]

    def close(self) -> None:
        """Close idle connections. Calls under way finish, and later calls raise ClosedError."""
        self._closed = True
        while self._idle:
            self._idle.pop().session.close()
        for client in list(self._https.values()):
            client.close()

    def cut(self) -> None:
        """End the calls under way: they raise ClosedError soon, and later calls at once.

        ``close()`` must still be called. Calls over a ``session`` of the user's end by their
        timeouts.

        Threads:
            From any task; it takes no lock and never waits.
        """
        self._closed = self._is_cut = True
        for call in list(self._calls):
            call.cut()
        for client in list(self._https.values()):
            client.cut()

    def server_time(self) -> float | None:
        """Return the server's clock, in whole seconds since 1970. None if it does not tell.

        Raises:
            ConnectionLost: The server does not answer ``/ping``.
            HTTPError: The server refuses the request.
            ProtocolError: The answer makes no sense.
        """
        try:
            return parsedate_to_datetime(self._request("GET", "/ping").date).timestamp()
        except ValueError:
            return None

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def _get_json(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        """Return the parsed answer without its envelope. Raises as ``_request``."""
        answer = self._request("GET", path, params)
        return payload(answer.content, answer.url)

    def _get_text(self, path: str, params: Mapping[str, str] | None = None) -> str:
        return self._request("GET", path, params).content.decode("utf-8", "replace")

    def _post(self, path: str, params: Mapping[str, str], body: bytes | None = None) -> None:
        self._request("POST", path, params, body)

    def _request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        """Send one request.

        Raises ConnectionLost (no connection, no answer, a broken one), HTTPError (an answer that
        is not 2xx), ProtocolError (an answer that makes no sense) and ClosedError.
        """
        if self._closed:
            raise ClosedError(f"{self!r} was closed")
        if isinstance(self._runtime, str):
            # Chosen at the first call, because a constructor must not make threads or locks.
            self._runtime = choose(self._runtime)
        exchange = partial(self._followed, method, path, params or {}, body)
        runtime = self._runtime
        answer: Answer | NSQError = (
            exchange() if runtime is None else runtime.call_blocking(exchange)
        )
        if self._is_cut:
            # Raised even after an answer: a cut connection may look like the end of one.
            raise ClosedError(f"{self!r} was closed")
        # Raised here: a traceback from the place of the response would keep its socket open.
        if isinstance(answer, NSQError):
            raise answer
        if not 200 <= answer.status < 300:
            raise http_error(
                answer.status, answer.reason, answer.content, answer.url, self._kind_hint
            )
        return answer

    def _followed(
        self, method: str, path: str, params: Mapping[str, str], body: bytes | None
    ) -> Answer | NSQError:
        answer = self._exchange(method, path, params, body)
        client = None if isinstance(answer, NSQError) else self._https_client(answer)
        return answer if client is None else client._exchange(method, path, params, body)

    def _https_client(self, answer: Answer) -> HTTPClient | None:
        """Return the client that repeats a request after an ``answer`` that asks for TLS."""
        port = https_port(answer)
        parts = urlsplit(self._url)
        if not port or parts.scheme != "http" or self._socket_path:
            return None
        client = self._https.get(port)
        if client is None:
            user, at, host = parts.netloc.rpartition("@")
            host = host.rpartition(":")[0]
            url = parts._replace(scheme="https", netloc=f"{user}{at}{host}:{port}").geturl()
            client = self._https.setdefault(port, HTTPClient(url, **self._https_keywords))
        if self._is_cut:
            client.cut()
        return client

    def _exchange(
        self, method: str, path: str, params: Mapping[str, str], body: bytes | None
    ) -> Answer | NSQError:
        url, shown = self._join(path, params)
        outer = sys.exc_info()[1]
        session, call = line = self._take_line()
        deadline = time.monotonic() + self._timeout * SLOWEST_ANSWER
        call.begin(deadline)
        self._calls.add(call)
        if self._is_cut:
            call.cut()
        try:
            response = session.request(
                method,
                url,
                data=body,
                headers=self._headers,
                timeout=(self._connect_timeout, self._timeout),
                # A redirected POST would arrive as a GET.
                allow_redirects=method == "GET",
                stream=True,
                hooks={"response": [*session.hooks["response"], watch_redirects(deadline, shown)]},
            )
            with response:
                content = b"" if response.is_redirect else _read(response, deadline, shown)
            return Answer(
                response.status_code,
                response.reason,
                response.headers.get("Content-Type", ""),
                content,
                shown,
                response.headers.get("Date", ""),
            )
        except ProtocolError as error:
            return error.with_traceback(None)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            failure: NSQError = ConnectionLost(f"{method} {shown}: {self._reason(error, outer)}")
            failure.__cause__ = _first(error, outer)
            return failure
        except ValueError as error:
            # Raised by readers of URLs and headers in requests and the standard library.
            failure = ProtocolError(f"{method} {shown}: the answer makes no sense: {error!s:.80}")
            failure.__cause__ = _first(error, outer)
            return failure
        finally:
            self._calls.discard(call)
            call.end()
            self._give_back(line)

    def _take_line(self) -> Line:
        if self._session is not None:
            return Line(self._session, Call())
        if self._pid != os.getpid():
            # Dropped, not closed: a TLS goodbye would end the parent's connections.
            self._pid = os.getpid()
            self._idle = []
        try:
            return self._idle.pop()
        except IndexError:
            session, call = line = Line(requests.Session(), Call())
        for scheme in ("http://", "https://"):
            session.mount(scheme, LimitedAdapter(call, self._socket_path))
        # A unix socket has no proxy on the way.
        session.trust_env = self._trust_env and not self._socket_path
        session.verify = self._verify
        session.cert = self._cert
        session.max_redirects = _MOST_REDIRECTS
        return line

    def _give_back(self, line: Line) -> None:
        if line.session is self._session:
            return
        self._idle.append(line)
        if self._closed:
            self.close()

    def _check_socket(self, address: str, session: object) -> str:
        """Return the path in ``unix:///path``. ConfigError if there can be none."""
        if not self.has_unix_sockets:
            raise ConfigError(
                f"HTTP address {address!r} is a unix socket; nsqlookupd has none, give host:port"
            )
        if session is not None:
            raise ConfigError("session goes over TCP; give none together with a unix socket")
        return parse_address(address).path

    def _join(self, path: str, params: Mapping[str, str]) -> tuple[str, str]:
        """Return the URL to ask, and the URL to show, without user info and the address's query.

        The parameters replace those of the same name in the address, such as a copied ``topic``.
        """
        parts = urlsplit(self._url)
        whole_path = parts.path.rstrip("/") + path
        added = urlencode(params, quote_via=quote)
        kept = [one for one in parts.query.split("&") if one.partition("=")[0] not in params]
        query = "&".join(part for part in (*kept, added) if part)
        url = parts._replace(path=whole_path, query=query, fragment="").geturl()
        server = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        if self._socket_path:
            server = f"unix://{self._socket_path}"
        return url, f"{server}{whole_path}{'?' if added else ''}{added}"

    def _reason(self, error: Exception, outer: BaseException | None) -> str:
        """Return the reason in words. Texts of requests show the whole URL, with any secret."""
        if isinstance(error, requests.exceptions.ConnectTimeout):
            return f"no connection within {self._connect_timeout:g} s"
        first = _first(error, outer)
        if isinstance(error, requests.exceptions.Timeout) or isinstance(
            first, (TimeoutError, urllib3.exceptions.ReadTimeoutError)
        ):
            return f"no answer within {self._timeout:g} s"
        if isinstance(first, (ConnectionResetError, http.client.BadStatusLine)):
            what = getattr(first, "strerror", None) or f"no HTTP answer ({words(str(first))})"
            return f"{what}; {self._port_hint}"
        if isinstance(first, ssl.SSLCertVerificationError):
            how = "trust its authority by tls_ca_file, or by SSL_CERT_FILE in the environment"
            return f"the certificate does not verify ({first.verify_message}); {how}"
        if isinstance(first, OSError) and first.strerror:
            return first.strerror
        if isinstance(first, requests.RequestException):
            return type(first).__name__
        return f"{type(first).__name__}: {first}"


def _first(error: BaseException, outer: BaseException | None) -> BaseException:
    """Return the error that others were raised from. ``outer``: what the caller was handling.

    The errors lose their tracebacks. Frames and errors of urllib3 refer to each other, and would
    keep a pool of open sockets alive after ``close()`` until the garbage collector runs.
    """
    while True:
        error.__traceback__ = None
        earlier = error.__cause__ or error.__context__
        if earlier is None or earlier is outer:
            return error
        error = earlier


def _read(response: requests.Response, deadline: float, shown: str) -> bytes:
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise ProtocolError(
            f"{shown}: the answer is compressed ({encoding:.40}), which was not asked for,"
            " and is not decompressed"
        )
    # read1 returns the bytes that are there. urllib3 1.x has only read, which waits for all.
    read = getattr(response.raw, "read1", response.raw.read)
    content = bytearray()
    while True:
        part = read(65536, decode_content=False)
        if not part:
            return bytes(content)
        content += part
        if len(content) > MAX_ANSWER:
            raise ProtocolError(f"{shown}: the answer is larger than {MAX_ANSWER} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("the answer does not end")


def _check_address(address: object, default_port: int) -> str:
    if isinstance(address, tuple) and len(address) == 2:
        address = str(Address(*address))
    if not isinstance(address, str):
        raise ConfigError(f"HTTP address is {address!r}; it must be host:port or a URL")
    return http_urls([address], default_port)[0]


def _bearer(token: str, url: str) -> str:
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token:
        raise ConfigError("authorization must be a token: a non-empty str of printable ASCII")
    if urlsplit(url).username is not None:
        raise ConfigError("authorization and user info in the URL are both given; give one")
    return f"Bearer {token}"


def authorities(ca_file: str | None, verify: bool) -> bool | str:
    """Return ``verify`` in the form of requests. The environment's bundle is the default."""
    if not isinstance(verify, bool):
        raise ConfigError(f"tls_verify is {verify!r}; it must be True or False")
    return (ca_file or environment_bundle() or True) if verify else False


def https_port(answer: Answer) -> int:
    """Return the port where nsqd wants to be asked instead, or 0."""
    if answer.status != 403:
        return 0
    try:
        port = parse_json(answer.content)["https_port"]
    except (ValueError, LookupError, TypeError):
        return 0
    return port if type(port) is int and 0 < port < 65536 else 0
