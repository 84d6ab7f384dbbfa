"""Exceptions of the package, and the table from nsqd's E_ codes to classes.

The tree::

    NSQError
    ├── ConfigError                 a value of yours is wrong; also a ValueError
    ├── ClosedError                 the Reader or Writer was closed, or belongs to another process
    ├── ConnectionLost              a connection ended or could not be made; reconnecting may help
    ├── NegotiationFailed           nsqd does not offer what the options require (TLS, AUTH, ...)
    ├── ProtocolError               the peer broke the rules of the protocol
    │   └── WrongPort               the peer speaks another protocol: it is not nsqd's TCP port
    ├── ServerError                 nsqd or nsqlookupd answered with an error
    │   ├── InvalidCommand, BadTopic, ...      one class per E_ code, see SERVER_ERRORS
    │   └── HTTPError               an HTTP answer that is not a success
    ├── PublishError                a publish was not acknowledged
    │   ├── NotSent                 no nsqd has it; publishing again is safe
    │   ├── Refused                 nsqd said no
    │   └── OutcomeUnknown          nsqd may or may not have it; publishing again may duplicate
    ├── MessageAnswered             a message was answered twice
    └── TimeLimitExceeded           a handler ran longer than time_limit; also a TimeoutError

Two attributes tell what to do without reading the text. ``retriable``: the same call may succeed
later, without a change. ``fatal``, of a ServerError: nsqd closes the connection after it.

``TimeLimitInterrupt`` is a BaseException outside the tree, which is raised in that handler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

__all__ = [
    "SERVER_ERRORS",
    "AuthDisabled",
    "AuthError",
    "AuthFailed",
    "AuthFirst",
    "BadBody",
    "BadChannel",
    "BadMessage",
    "BadProtocol",
    "BadTopic",
    "ClosedError",
    "ConfigError",
    "ConnectionLost",
    "DpubFailed",
    "FinFailed",
    "HTTPError",
    "IdentifyFailed",
    "InvalidCommand",
    "MessageAnswered",
    "MpubFailed",
    "NSQError",
    "NegotiationFailed",
    "NotSent",
    "OutcomeUnknown",
    "ProtocolError",
    "PubFailed",
    "PublishError",
    "Refused",
    "ReqFailed",
    "ServerError",
    "SubFailed",
    "TimeLimitExceeded",
    "TimeLimitInterrupt",
    "TooFewCopies",
    "TouchFailed",
    "Unauthorized",
    "WrongPort",
    "server_error",
]


class NSQError(Exception):
    """Base of all exceptions that the package raises on purpose."""

    retriable: ClassVar[bool] = False


class ConfigError(NSQError, ValueError):
    """A name, size, address or option is not allowed. The text says what would be allowed.

    Raised in the caller, before anything is sent.
    """


class ClosedError(NSQError):
    """The Reader or Writer was closed, or was made in the parent of this process.

    Attributes:
        acknowledged: Number of messages of the same ``publish_many()`` confirmed before it.
    """

    acknowledged = 0


class ConnectionLost(NSQError):
    """A connection to nsqd ended, was refused or timed out."""

    retriable = True


class NegotiationFailed(NSQError):
    """nsqd does not offer what the options require, or its certificate does not verify.

    A new try does not help before nsqd or the options are changed.
    """


class ProtocolError(NSQError):
    """The peer sent something that the protocol does not allow; the connection is closed."""

    retriable = True


class WrongPort(ProtocolError):
    """The peer speaks HTTP, TLS or nsqlookupd's protocol: the address must be changed."""

    retriable = False


class ServerError(NSQError):
    """An error frame of nsqd (docs/protocol/errors#error-frames).

    Attributes:
        code: The first word, such as ``E_BAD_TOPIC``.
        detail: The rest of the text.
        fatal: True if nsqd closes the connection after it.
    """

    fatal: ClassVar[bool] = True

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code} {detail}".rstrip())
        self.code = code
        self.detail = detail


class BadProtocol(ServerError):
    """E_BAD_PROTOCOL: nsqd did not understand the magic bytes."""


class InvalidCommand(ServerError):
    """E_INVALID: a command was malformed or not allowed in this state."""


class BadBody(ServerError):
    """E_BAD_BODY: IDENTIFY, AUTH or MPUB carried a body that nsqd refuses."""


class BadTopic(ServerError):
    """E_BAD_TOPIC: the topic name is not valid."""


class BadChannel(ServerError):
    """E_BAD_CHANNEL: the channel name is not valid."""


class BadMessage(ServerError):
    """E_BAD_MESSAGE: a message is empty or larger than nsqd's --max-msg-size."""


class PubFailed(ServerError):
    """E_PUB_FAILED: nsqd could not store the message (a full disk, a topic being deleted)."""

    retriable = True


class MpubFailed(PubFailed):
    """E_MPUB_FAILED: nsqd could not store the messages; a part of them may be stored."""


class DpubFailed(PubFailed):
    """E_DPUB_FAILED: nsqd could not store the deferred message."""


class SubFailed(ServerError):
    """E_SUB_FAILED: the channel has its maximum of consumers, or is being deleted."""

    retriable = True


class IdentifyFailed(ServerError):
    """E_IDENTIFY_FAILED: requested features could not be switched on."""


class AuthDisabled(ServerError):
    """E_AUTH_DISABLED: AUTH was sent to an nsqd without an auth server."""


class AuthFailed(ServerError):
    """E_AUTH_FAILED: nsqd's auth server could not be asked, or gave a bad answer."""

    retriable = True


class AuthFirst(ServerError):
    """E_AUTH_FIRST: nsqd demands AUTH before this command."""


class AuthError(ServerError):
    """E_AUTH_ERROR: nsqd could not write the answer to AUTH."""

    retriable = True


class Unauthorized(ServerError):
    """E_UNAUTHORIZED: the secret does not allow this topic or channel."""


class FinFailed(ServerError):
    """E_FIN_FAILED: the message is not in flight on this connection any more. Not fatal."""

    fatal = False


class ReqFailed(ServerError):
    """E_REQ_FAILED: the message is not in flight on this connection any more. Not fatal."""

    fatal = False


class TouchFailed(ServerError):
    """E_TOUCH_FAILED: the message is not in flight on this connection any more. Not fatal."""

    fatal = False


SERVER_ERRORS: dict[str, type[ServerError]] = {
    "E_BAD_PROTOCOL": BadProtocol,
    "E_INVALID": InvalidCommand,
    "E_BAD_BODY": BadBody,
    "E_BAD_TOPIC": BadTopic,
    "E_BAD_CHANNEL": BadChannel,
    "E_BAD_MESSAGE": BadMessage,
    "E_PUB_FAILED": PubFailed,
    "E_MPUB_FAILED": MpubFailed,
    "E_DPUB_FAILED": DpubFailed,
    "E_SUB_FAILED": SubFailed,
    "E_IDENTIFY_FAILED": IdentifyFailed,
    "E_AUTH_DISABLED": AuthDisabled,
    "E_AUTH_FAILED": AuthFailed,
    "E_AUTH_FIRST": AuthFirst,
    "E_AUTH_ERROR": AuthError,
    "E_UNAUTHORIZED": Unauthorized,
    "E_FIN_FAILED": FinFailed,
    "E_REQ_FAILED": ReqFailed,
    "E_TOUCH_FAILED": TouchFailed,
}


# Upper bound of characters of a peer's text in an error.
_MAX_TEXT = 1000


def server_error(data: bytes) -> ServerError:
    """Return the exception for the error frame ``data``; a ServerError for an unknown code.

    Its text is one line of at most 1000 characters, whatever the peer sent, as it goes into logs.
    """
    text = data[:_MAX_TEXT].decode("utf-8", "replace")
    if not text.isprintable():
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    code, _, detail = text.partition(" ")
    return SERVER_ERRORS.get(code, ServerError)(code, detail)


class HTTPError(ServerError):
    """An HTTP answer of nsqd or nsqlookupd that is not a success.

    Attributes:
        status: The HTTP status.
        code: The text of its ``message``, such as ``TOPIC_NOT_FOUND``.
        url: The URL that was asked, without user info.
    """

    fatal = False

    def __init__(self, status: int, code: str, url: str) -> None:
        super().__init__(code, f"(HTTP {status} from {url})")
        self.status = status
        self.url = url


class PublishError(NSQError):
    """A publish was not acknowledged. The subclasses say what is known about its outcome.

    Attributes:
        acknowledged: Number of messages of the same ``publish_many()`` confirmed before it.
    """

    acknowledged = 0


class NotSent(PublishError):
    """The message is at no nsqd, not even in part. Publishing again cannot duplicate it.

    Args:
        text: The sentence of the error.

    Attributes:
        causes: Errors at the nsqds that were tried, the newest last.
    """

    retriable = True

    def __init__(self, text: str, causes: Sequence[BaseException] = ()) -> None:
        super().__init__(text)
        self.causes: tuple[BaseException, ...] = tuple(causes)


class Refused(PublishError):
    """nsqd answered with an error.

    Args:
        text: The sentence of the error.

    Attributes:
        error: The ServerError that nsqd sent.
        code: The E_ code of that error.
    """

    def __init__(self, text: str, error: ServerError) -> None:
        super().__init__(text)
        self.error = error
        self.code: str = error.code


class OutcomeUnknown(PublishError):
    """The message was sent, but no answer came. Publishing again may duplicate it."""


class TooFewCopies(OutcomeUnknown):
    """Fewer nsqds have the message than ``copies_min`` of a Writer demands.

    It will be delivered, unless those nsqds are lost. Publish it again with the same key: an inbox
    or KeyWindow that drops twins drops this one, too.

    Args:
        text: The sentence of the error.

    Attributes:
        nsqds: ``host:port`` of the nsqds that have it, one or more.
        copies: Number of these nsqds.
    """

    def __init__(self, text: str, nsqds: Iterable[str] = ()) -> None:
        super().__init__(text)
        self.nsqds: tuple[str, ...] = tuple(nsqds)

    @property
    def copies(self) -> int:
        """Number of the nsqds that have the message."""
        return len(self.nsqds)


class MessageAnswered(NSQError):
    """An answer (finish, requeue, touch) to a message that was finished or requeued before."""


class TimeLimitExceeded(NSQError, TimeoutError):
    """A handler ran longer than its ``time_limit``. It is a failure of the handler like any other.

    Middlewares, ``retry_on`` and similar options, ``backoff`` and ``on_giving_up`` see it. Its
    ``__cause__`` is the TimeLimitInterrupt, whose traceback shows where the handler was.
    """


class TimeLimitInterrupt(BaseException):
    """Raised in a handler when its ``time_limit`` is over, once for each message.

    It is not an Exception, so that ``except Exception`` does not stop it. Clean up in a
    ``finally``. A handler may catch it, and its return then counts as any return.
    """
