"""Options as frozen objects, whose constructors check units, ranges and names.

Knows what nsqd accepts (docs/protocol/handshake#identify-body and docs/protocol/limits#names), so
that a wrong value fails in the caller and not in an endless reconnect loop. Must not know bytes on
the wire.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any, TypedDict

from gnsqsync._version import __version__
from gnsqsync.addresses import Address, parse_address
from gnsqsync.errors import ConfigError
from gnsqsync.keywords import checks_names_of, refuse_names

if TYPE_CHECKING:
    from gnsqsync.message import Message

__all__ = [
    "ConnectionOptionKeywords",
    "ConnectionOptions",
    "check_body",
    "check_channel",
    "check_duration",
    "check_handler",
    "check_int",
    "check_ran",
    "check_tls_files",
    "check_topic",
    "environment_bundle",
    "handler_name",
    "https_options",
    "split_connection_options",
]

# Fields of ConnectionOptions that serve for https, too.
_HTTPS = ("tls_ca_file", "tls_cert_file", "tls_key_file", "tls_verify")
# Environment variables that name authorities for all programs. The first one that is set counts.
_BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")

_NAME = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?")


def _check_name(kind: str, name: object) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"{kind} name is {type(name).__name__}; it must be a str")
    # fullmatch, because $ would accept a trailing newline.
    if not 1 <= len(name) <= 64 or _NAME.fullmatch(name) is None:
        raise ConfigError(
            f"{kind} name {name!r} is not valid: 1 to 64 of the characters"
            " . a-z A-Z 0-9 _ - and at the end optionally #ephemeral"
        )
    return name


def check_topic(name: object) -> str:
    """Return the topic name, or raise ConfigError (docs/protocol/limits#names)."""
    return _check_name("topic", name)


def check_channel(name: object) -> str:
    """Return the channel name, or raise ConfigError (docs/protocol/limits#names)."""
    return _check_name("channel", name)


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        # A file name or an argument that was not UTF-8, say. The text itself may be a secret.
        raise ConfigError(
            f"{name} has a lone surrogate at {error.start}; a str must be text that UTF-8 can"
            " encode, so give bytes"
        ) from None


def check_body(body: object, max_size: int, what: str = "body") -> bytes:
    """Return a message body as bytes. A str is encoded as UTF-8.

    Raises ConfigError for another type, a str that UTF-8 cannot encode, an empty body, or one
    larger than ``max_size`` bytes. For the last two, nsqd would close the connection, and with it
    other publishes under way (docs/protocol/publishing#publish).
    """
    if isinstance(body, bytes):
        data = body
    elif isinstance(body, str):
        data = _utf8(what, body)
    elif isinstance(body, (bytearray, memoryview)):
        data = bytes(body)
    else:
        raise ConfigError(f"{what} is {type(body).__name__}; it must be bytes or str")
    if not data:
        raise ConfigError(f"{what} is empty; nsqd accepts 1 to {max_size} bytes")
    if len(data) > max_size:
        raise ConfigError(
            f"{what} has {len(data)} bytes; max_msg_size allows {max_size}"
            " (raise it together with nsqd's --max-msg-size)"
        )
    return data


def check_duration(
    name: str,
    value: object,
    low: float = 0.0,
    high: float = math.inf,
    *,
    also: tuple[float, ...] = (),
    extra: str = "",
    finite: bool = False,
) -> float:
    """Return ``value`` as float seconds within low..high, or one of ``also``; else ConfigError.

    ``finite``: True if infinity is wrong, too, because nsqd is told the number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise ConfigError(f"{name} is {value!r}; it must be a number of seconds")
    if finite and math.isinf(value):
        raise ConfigError(f"{name} is {value!r}; it must be a finite number of seconds")
    if value in also or low <= value <= high:
        return float(value)
    if high == math.inf:
        allowed = f"{low:g} or more"
    else:
        allowed = f"{low:g} to {high:g}"
    raise ConfigError(f"{name} is {value!r} seconds; allowed is {allowed}{extra}")


def check_int(
    name: str,
    value: object,
    low: int,
    high: int | None = None,
    *,
    also: tuple[int, ...] = (),
    unit: str = "",
) -> int:
    """Return ``value`` as int within low..high, or one of ``also``; else ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} is {value!r}; it must be an int")
    if value in also or (value >= low and (high is None or value <= high)):
        return value
    allowed = f"{low} or more" if high is None else f"{low} to {high}"
    if also:
        allowed += " or " + ", ".join(map(str, also))
    raise ConfigError(f"{name} is {value}; allowed is {allowed}{unit}")


def limited(default: Any, check: Callable[..., object], *limits: float, **more: Any) -> Any:
    """Return a field of a dataclass whose value ``check`` takes with its limits."""
    return field(default=default, metadata={"check": check, "limits": limits, "more": more})


def check_limits(options: Any) -> None:
    """Check the fields that ``limited`` made. None is right for a field whose default is None."""
    for one in fields(options):
        value = getattr(options, one.name)
        if "check" in one.metadata and not (value is None and one.default is None):
            found = one.metadata
            found["check"](one.name, value, *found["limits"], **found["more"])


# Functions whose call only makes an object, which a Reader would throw away.
_NEVER_RUN: tuple[tuple[Callable[[object], bool], str], ...] = (
    (inspect.iscoroutinefunction, "a coroutine function"),
    (inspect.isasyncgenfunction, "an async generator function"),
    (inspect.isgeneratorfunction, "a generator function"),
)
# Types of generators, which begin to run only when a value is taken from them.
_UNRUN = (GeneratorType, AsyncGeneratorType)


def check_handler(name: str, function: object, *arguments: str) -> None:
    """Raise ConfigError unless ``function`` is a callable whose code runs when it is called.

    ``name`` is its name in the error. ``arguments`` are words for its positional arguments; the
    default is the message. The code is looked for through functools.partial and in the ``__call__``
    of an object. Some functions written in C do not tell their arguments; these are not checked.
    """
    takes = arguments or ("a message",)
    right = f"it must be a callable that takes {' and '.join(takes)}"
    if not callable(function):
        raise ConfigError(f"{name} is {function!r}; {right}")
    called: Any = function
    while isinstance(called, functools.partial):
        called = called.func
    for is_kind, kind in _NEVER_RUN:
        if is_kind(called) or is_kind(type(called).__call__):
            raise ConfigError(
                f"{name} is {kind}: its code would never run; give a plain function, which may run"
                " a loop of its own or detach() the message"
            )
    try:
        # A wrapper may take fewer arguments than the function that it wraps.
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*takes)
    except TypeError as error:
        bare = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
        shown = signature.replace(parameters=bare, return_annotation=signature.empty)
        raise ConfigError(f"{name} is {handler_name(function)}{shown}: {error}; {right}") from error


def check_ran(returned: object, message: Message) -> None:
    """Raise ConfigError if a handler returned code that has not run.

    A coroutine, another awaitable or a generator is the work itself, not yet begun. A handler that
    has detached or answered its message may return anything, because its return has no meaning.
    """
    if inspect.isawaitable(returned) or isinstance(returned, _UNRUN):
        if inspect.iscoroutine(returned):
            returned.close()  # Python would warn beside the error.
        if message.is_detached or message.is_answered:
            return
        raise ConfigError(
            f"the handler returned a {type(returned).__name__}, which nobody runs; do the work"
            " before the return (asyncio.run() runs a coroutine), or detach() the message and"
            " finish it when the work is done"
        )


def handler_name(function: object) -> str:
    """Return module and name of the function that is finally called, for log lines.

    It is looked for as in ``check_handler``, and through ``__wrapped__`` of objects.
    """
    called: Any = function
    while not hasattr(called, "__qualname__"):
        if isinstance(called, functools.partial):
            called = called.func
        elif hasattr(called, "__wrapped__"):
            called = called.__wrapped__
        else:
            called = type(called)
    # A method of an object written in C has no module.
    module = getattr(called, "__module__", None)
    return f"{module}.{called.__qualname__}" if module else str(called.__qualname__)


def https_options(options: ConnectionOptions | Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords of HTTP clients: the TLS files of a connection serve for https, too."""
    if isinstance(options, ConnectionOptions):
        return {name: getattr(options, name) for name in _HTTPS}
    return {name: options[name] for name in _HTTPS if name in options}


def environment_bundle() -> str | None:
    """Return the file or folder of authorities that the environment names, or None."""
    return next((path for name in _BUNDLES if (path := os.environ.get(name))), None)


def check_tls_files(**paths: str | None) -> None:
    """Raise ConfigError for a file that does not exist, or a key without its certificate."""
    if paths.get("tls_key_file") and not paths.get("tls_cert_file"):
        raise ConfigError("tls_key_file without tls_cert_file; give both")
    for name, path in paths.items():
        if path and not os.path.isfile(path):
            raise ConfigError(f"{name} {path!r} is not a file")


def _short_hostname() -> str:
    return socket.gethostname().split(".")[0]


@checks_names_of
@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Options of a connection to one nsqd. All are keyword options of Reader and Writer, too.

    Ranges are nsqd's own (docs/protocol/handshake#identify-body).

    Args:
        client_id: Name in nsqd's stats. The default is the host name up to its first dot.
        hostname: Host name in nsqd's stats.
        user_agent: Program in nsqd's stats.
        connect_timeout: Seconds, 0.001 or more: one deadline for dialling, TLS, IDENTIFY, AUTH and
            SUB.
        heartbeat_interval: Seconds, 1 to 60 (nsqd's ``--max-heartbeat-interval``). Twice that
            without a frame means that the nsqd is dead.
        msg_timeout: Seconds, 1 to 900 and at most nsqd's ``--max-msg-timeout``, until an unanswered
            message is delivered again. None means nsqd's ``--msg-timeout``.
        sample_rate: 0 to 99. N above 0 means that nsqd delivers N+1 percent and throws the rest
            away.
        output_buffer_size: Bytes of nsqd's buffer for this connection, 64 to 65536; -1 means no
            buffer, 0 nsqd's default.
        output_buffer_timeout: Seconds, 0.025 to 30, that nsqd holds its buffer back; 0 means nsqd's
            default. -1 means no timer: messages stay in the buffer until it is full, RDY is used
            up, or the next heartbeat comes, but the embedded nsqd still sends them at once. To have
            each message at once from both, switch the buffer off: ``output_buffer_size=-1``.
        tls: True, or an ``ssl.SSLContext``. A server without TLS is then refused.
        tls_ca_file: PEM path of the authorities to trust; implies ``tls``. None means the bundle of
            ``SSL_CERT_FILE``, ``REQUESTS_CA_BUNDLE`` or ``CURL_CA_BUNDLE``, or else the system's.
        tls_cert_file: PEM path of the client certificate; implies ``tls``. None: no certificate.
        tls_key_file: PEM path of the certificate's key. None: the key is in ``tls_cert_file``.
        tls_verify: If True, check certificate and host name.
        tls_server_hostname: The name to check. None means the host of the address.
        snappy: If True, compress by Snappy; an nsqd without it is refused.
        deflate: If True, compress by DEFLATE; not together with ``snappy``.
        deflate_level: Level of the compression, 1 to 9; nsqd may lower it.
        auth_secret: str, bytes, or a function that returns one and is called at each connect. None:
            no AUTH.
        topology_region: Region of this client, for nsqds with topology-aware consumption. None:
            no region.
        topology_zone: Zone of this client, for the same. None: no zone.
        local_addr: ``host`` or ``host:port`` to bind before dialling. None: the kernel chooses.
        address_map: A dict or function from the ``host:port`` found to the ``host:port`` to dial.
            None: the same.
        max_frame_size: Bytes, 1024 or more: the largest frame to accept from nsqd.

    Raises:
        ConfigError: A value is out of range, or two values do not go together.
    """

    client_id: str = field(default_factory=_short_hostname)
    hostname: str = field(default_factory=socket.gethostname)
    user_agent: str = f"gnsqsync/{__version__}"
    connect_timeout: float = limited(5.0, check_duration, 0.001)
    heartbeat_interval: float = limited(
        30.0, check_duration, 1, 60, extra=" (nsqd's --max-heartbeat-interval)"
    )
    msg_timeout: float | None = limited(
        None,
        check_duration,
        1,
        900,
        extra=" (nsqd's --max-msg-timeout), or None for nsqd's default",
    )
    sample_rate: int = limited(0, check_int, 0, 99)
    output_buffer_size: int = limited(65536, check_int, 64, 65536, also=(-1, 0), unit=" bytes")
    output_buffer_timeout: float = limited(
        0.025, check_duration, 0.025, 30, also=(-1, 0), extra=", 0 for nsqd's default or -1 for off"
    )
    tls: bool | ssl.SSLContext = False
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_verify: bool = True
    tls_server_hostname: str | None = None
    snappy: bool = False
    deflate: bool = False
    deflate_level: int = limited(6, check_int, 1, 9)
    auth_secret: str | bytes | Callable[[], str | bytes] | None = field(default=None, repr=False)
    topology_region: str | None = None
    topology_zone: str | None = None
    local_addr: str | None = None
    address_map: Mapping[str, str] | Callable[[str], str] | None = None
    max_frame_size: int = limited(16777216, check_int, 1024, 2**31 - 1, unit=" bytes")

    def __post_init__(self) -> None:
        for name in ("client_id", "hostname", "user_agent"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be a str")
        for name in ("topology_region", "topology_zone", "tls_server_hostname"):
            if not isinstance(getattr(self, name), (str, type(None))):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be a str or None")
        for name in ("tls_verify", "snappy", "deflate"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be True or False")
        check_limits(self)
        if self.snappy and self.deflate:
            raise ConfigError("snappy and deflate are both on; nsqd allows one of them")
        if self.deflate and self.output_buffer_size == -1:
            raise ConfigError(
                "deflate with output_buffer_size=-1 keeps messages inside nsqd's compressor"
                "; leave the buffer on"
            )
        self._check_tls()
        if not callable(self.auth_secret):
            self.secret()
        self.local_address()
        if self.address_map is not None and not (
            callable(self.address_map) or isinstance(self.address_map, Mapping)
        ):
            raise ConfigError(f"address_map is {self.address_map!r}; give a dict or a callable")

    def _check_tls(self) -> None:
        if not isinstance(self.tls, (bool, ssl.SSLContext)):
            raise ConfigError(f"tls is {self.tls!r}; it must be True, False or an ssl.SSLContext")
        paths = {n: getattr(self, n) for n in ("tls_ca_file", "tls_cert_file", "tls_key_file")}
        given = [name for name, path in paths.items() if path]
        if isinstance(self.tls, ssl.SSLContext) and (given or not self.tls_verify):
            named = ", ".join(given) or "tls_verify"
            raise ConfigError(f"tls is an SSLContext, so set {named} on that context instead")
        check_tls_files(**paths)

    @property
    def uses_tls(self) -> bool:
        """True if TLS is required, by ``tls`` or by one of the TLS files."""
        return bool(self.tls) or bool(self.tls_ca_file or self.tls_cert_file)

    def ssl_context(self) -> ssl.SSLContext:
        """Return the given context, or a default one with the TLS files and tls_verify.

        Raises:
            ConfigError: A file cannot be loaded.
        """
        if isinstance(self.tls, ssl.SSLContext):
            return self.tls
        bundle = self.tls_ca_file or environment_bundle()
        is_folder = bundle is not None and os.path.isdir(bundle)
        try:
            context = ssl.create_default_context(
                cafile=None if is_folder else bundle, capath=bundle if is_folder else None
            )
            if self.tls_cert_file:
                context.load_cert_chain(
                    self.tls_cert_file, self.tls_key_file, password=self._no_password
                )
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"cannot load the authorities of {bundle!r} (tls_ca_file, or else"
                f" {', '.join(_BUNDLES)}), or tls_cert_file={self.tls_cert_file!r}: {error}"
            ) from error
        if not self.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def _no_password(self) -> str:
        """Raise in place of OpenSSL's question for the password of a key on the terminal."""
        raise ConfigError(
            f"the key in {self.tls_key_file or self.tls_cert_file!r} is encrypted;"
            " load it into an ssl.SSLContext and give that as tls"
        )

    def secret(self) -> bytes | None:
        """Return the AUTH secret as bytes, or None. Calls a callable each time.

        Raises:
            ConfigError: The secret is empty, is neither str nor bytes, or cannot be encoded as
                UTF-8.
        """
        secret = self.auth_secret() if callable(self.auth_secret) else self.auth_secret
        if secret is None:
            return None
        if not isinstance(secret, (str, bytes)) or not secret:
            raise ConfigError(
                "auth_secret must be a non-empty str or bytes, or a function that returns one"
            )
        return _utf8("auth_secret", secret) if isinstance(secret, str) else secret

    def local_address(self) -> Address | None:
        """Return ``local_addr`` parsed, or None. Port 0 lets the kernel choose.

        Raises:
            ConfigError: The value is not ``host`` or ``host:port``.
        """
        text = self.local_addr
        if text is None:
            return None
        address = parse_address(text)
        if address.path:
            raise ConfigError(f"local_addr {text!r} is a path; it must be host or host:port")
        has_port = text.endswith(f":{address.port}")
        return address if has_port else Address(address.host, 0)

    def dial_address(self, address: Address) -> Address:
        """Return ``address`` as ``address_map`` maps it. Runs user code: call it without locks."""
        mapping = self.address_map
        if mapping is None:
            return address
        found = str(address)
        mapped = mapping(found) if callable(mapping) else mapping.get(found, found)
        return parse_address(mapped)


class ConnectionOptionKeywords(TypedDict, total=False):
    """The fields of ConnectionOptions as keywords of Reader, Writer and functions around them.

    ``def consumer(**options: Unpack[ConnectionOptionKeywords]): Reader(..., **options)``. All are
    optional. Ranges and meanings are those of ConnectionOptions.
    """

    client_id: str
    """Default: the host name up to its first dot."""
    hostname: str
    """Default: the host name."""
    user_agent: str
    """Default: 'gnsqsync/<version>'."""
    connect_timeout: float
    """Seconds. Default: 5.0."""
    heartbeat_interval: float
    """Seconds. Default: 30.0."""
    msg_timeout: float | None
    """Seconds. Default: None, which is nsqd's own."""
    sample_rate: int
    """Percent. Default: 0, which is all messages."""
    output_buffer_size: int
    """Bytes. Default: 65536."""
    output_buffer_timeout: float
    """Seconds. Default: 0.025."""
    tls: bool | ssl.SSLContext
    """Default: False."""
    tls_ca_file: str | None
    """PEM path. Default: None."""
    tls_cert_file: str | None
    """PEM path. Default: None."""
    tls_key_file: str | None
    """PEM path. Default: None."""
    tls_verify: bool
    """Default: True."""
    tls_server_hostname: str | None
    """Default: None, which is the host of the address."""
    snappy: bool
    """Default: False."""
    deflate: bool
    """Default: False."""
    deflate_level: int
    """Default: 6."""
    auth_secret: str | bytes | Callable[[], str | bytes] | None
    """Default: None."""
    topology_region: str | None
    """Default: None."""
    topology_zone: str | None
    """Default: None."""
    local_addr: str | None
    """Default: None."""
    address_map: Mapping[str, str] | Callable[[str], str] | None
    """Default: None."""
    max_frame_size: int
    """Bytes. Default: 16777216."""


_OPTION_NAMES = frozenset(f.name for f in fields(ConnectionOptions))


def split_connection_options(
    options: ConnectionOptions | None, keywords: Mapping[str, Any], owner: type
) -> ConnectionOptions:
    """Return the ConnectionOptions of a Reader or Writer, from an object or from keywords.

    ConfigError names a keyword that does not exist, and the one that was probably meant.
    """
    unknown = keywords.keys() - _OPTION_NAMES
    if unknown:
        known = _OPTION_NAMES | inspect.signature(owner).parameters.keys()
        refuse_names(owner.__name__, unknown, known)
    if options is None:
        return ConnectionOptions(**keywords)
    if not isinstance(options, ConnectionOptions):
        raise ConfigError(f"options is {type(options).__name__}; it must be ConnectionOptions")
    if keywords:
        given = ", ".join(sorted(keywords))
        raise ConfigError(f"options= and {given} are both given; put all of them into options")
    return options
