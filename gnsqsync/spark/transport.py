"""The border to the libraries of object stores: OSErrors for their exceptions, repeated requests.

Knows the names of the exceptions, and imports no library. Must not know what a request does.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

__all__ = ["as_os_error", "code_of", "patiently"]

log: logging.Logger = logging.getLogger("gnsqsync.spark")

T = TypeVar("T")

# Seconds for which a request to a store that does not answer is repeated. The libraries themselves
# try for some seconds only. A restart of a proxy, a DNS server or the store itself takes longer.
_PATIENCE = 60.0
# Seconds between two tries: doubled from the first to the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0

# Packages whose exceptions may be no OSErrors.
_PACKAGES = {
    *("botocore", "aiobotocore", "aiohttp", "s3fs", "fsspec"),
    *("google", "gcsfs", "azure", "adlfs", "requests", "urllib3"),
}
# Exceptions (package and class, subclasses included) that leave open whether the request is right.
# Such a request is repeated.
_TRANSIENT = {
    *("botocore.ConnectionError", "botocore.HTTPClientError", "botocore.IncompleteReadError"),
    *("botocore.ResponseParserError", "botocore.CredentialRetrievalError", "aiohttp.ClientError"),
    *("azure.ServiceRequestError", "azure.ServiceResponseError", "google.TransportError"),
    *("requests.ConnectionError", "requests.Timeout", "requests.ChunkedEncodingError"),
    *("urllib3.HTTPError", "socket.gaierror", "builtins.ConnectionError", "builtins.TimeoutError"),
}
# Answers of a store that is busy or in trouble, as a code or an HTTP status. S3 answers 409 when
# two conditional writes of one name meet. The outcome is then unknown (S3 manual, "Prevent object
# overwrites with conditional writes").
_BUSY = {
    *("ConditionalRequestConflict", "OperationAborted", "409"),
    *("SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "Throttling"),
    *("429", "500", "502", "503", "504"),
}


def patiently(call: Callable[[], T], where: str) -> T:
    """Make the request ``call`` and return its result; repeat it while the store is away or busy.

    The store may have done a ``call`` that failed, so ``call`` must bear a repetition. Raises
    ConnectionError if the store was away for _PATIENCE seconds, and OSError for every other error
    of its library. ``where``: the store's name in texts.
    """
    deadline: float | None = None
    pause = _FIRST_PAUSE
    while True:
        try:
            with as_os_error(where):
                return call()
        except OSError as error:
            if not _is_transient(error):
                raise
            now = time.monotonic()
            if deadline is None:
                deadline = now + _PATIENCE
                if code_of(error) not in _BUSY:
                    log.warning(
                        "%s cannot be reached; it is asked again for %d s at most: %s",
                        where,
                        _PATIENCE,
                        _told(error),
                    )
            if now + pause > deadline:
                raise ConnectionError(
                    f"{where} could not be reached for {_PATIENCE:.0f} s: {_told(error)}; look at"
                    " the network and at the endpoint in the options, then start again"
                ) from error
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


@contextlib.contextmanager
def as_os_error(where: str) -> Iterator[None]:
    """Turn exceptions of a store's library into OSErrors that name the store."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        if not any(_package(kind) in _PACKAGES for kind in type(error).__mro__):
            raise
        raise OSError(f"{where}: {_told(error)}") from error


def code_of(error: BaseException) -> str:
    """Return the store's error code, or else the HTTP status, or else an empty text."""
    for each in _chain(error):
        response = getattr(each, "response", None)
        if isinstance(response, Mapping):
            return str(response.get("Error", {}).get("Code", ""))
        # Azure, aiohttp and Google have attributes of these names.
        for name in ("status_code", "status", "code"):
            status = getattr(each, name, None)
            if isinstance(status, int | str) and str(status).isdecimal():
                return str(status)
    return ""


def _is_transient(error: OSError) -> bool:
    chain = [*_chain(error)]
    if isinstance(error, FileNotFoundError | FileExistsError | PermissionError) or any(
        isinstance(each, ssl.SSLCertVerificationError) for each in chain
    ):
        return False
    if code := code_of(error):
        return code in _BUSY
    names = {f"{_package(kind)}.{kind.__name__}" for each in chain for kind in type(each).__mro__}
    return bool(names & _TRANSIENT)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, and then its causes."""
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _told(error: BaseException) -> str:
    """Return one line about the error, or about its cause if the error only wraps that."""
    if type(error) is OSError and error.errno is None and error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
