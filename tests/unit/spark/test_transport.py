"""Exceptions of object stores at our border: which become OSErrors, which are tried again."""

from __future__ import annotations

import errno
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from gnsqsync.spark import transport
from gnsqsync.spark.transport import code_of, patiently


def library(name: str, base: type[Exception] = Exception) -> type[Exception]:
    """An exception as ``package.module.Class`` raises it."""
    module, _, kind = name.rpartition(".")
    return type(kind, (base,), {"__module__": module})


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(transport, "time", clock)
    return clock


def failing(error: Exception, until: float, clock: Clock) -> Callable[[], str]:
    def call() -> str:
        if clock.now < until:
            raise error
        return "done"

    return call


def answer(code: str) -> OSError:
    """An error as s3fs makes it of an answer."""
    error = OSError(errno.EIO, "told")
    error.__cause__ = Exception()
    error.__cause__.response = {"Error": {"Code": code}}  # type: ignore[attr-defined]
    return error


BOTO = library("botocore.exceptions.BotoCoreError")
TRANSIENT = [
    library(
        "botocore.exceptions.EndpointConnectionError", library("botocore.x.ConnectionError", BOTO)
    ),
    library("botocore.exceptions.ReadTimeoutError", library("botocore.x.HTTPClientError", BOTO)),
    library("aiohttp.client_exceptions.ServerDisconnectedError", library("aiohttp.x.ClientError")),
    library("azure.core.exceptions.ServiceRequestError"),
    library("google.auth.exceptions.TransportError"),
    library("requests.exceptions.ConnectionError", OSError),
    library("fsspec.exceptions.FSTimeoutError", TimeoutError),
    ConnectionRefusedError,
]


@pytest.mark.parametrize("kind", TRANSIENT, ids=lambda kind: kind.__qualname__)
def test_an_outage_passes(kind: Any, clock: Clock) -> None:
    assert patiently(failing(kind("refused"), 14.0, clock), "walPath 's3://b/w'") == "done"
    # Growing pauses, so that a store that comes back is not flooded.
    assert clock.pauses == sorted(clock.pauses)
    assert len(clock.pauses) < 12


@pytest.mark.parametrize("kind", TRANSIENT, ids=lambda kind: kind.__qualname__)
def test_an_outage_that_lasts_is_one_sentence(kind: Any, clock: Clock) -> None:
    with pytest.raises(ConnectionError) as raised:
        patiently(failing(kind("refused\nhere"), 1e9, clock), "walPath 's3://b/w'")
    text = str(raised.value)
    assert text.startswith("walPath 's3://b/w' could not be reached for 60 s: ")
    assert f"{kind.__name__}: refused here" in text
    assert "\n" not in text
    assert 50 < clock.now <= 60


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "SlowDown", "503", "InternalError"])
def test_a_busy_store_is_asked_again(code: str, clock: Clock) -> None:
    assert patiently(failing(answer(code), 3.0, clock), "x") == "done"


def test_a_status_is_known_without_a_code() -> None:
    error = OSError("told")
    error.__cause__ = library("azure.core.exceptions.HttpResponseError")()
    error.__cause__.status_code = 503  # type: ignore[attr-defined]
    assert code_of(error) == "503"
    assert code_of(OSError(errno.ENOSPC, "full")) == ""


BAD_CERTIFICATE = library(
    "botocore.exceptions.SSLError", library("botocore.x.ConnectionError", BOTO)
)()
BAD_CERTIFICATE.__cause__ = ssl.SSLCertVerificationError("self-signed")


@pytest.mark.parametrize(
    "error",
    [
        library("botocore.exceptions.NoCredentialsError", BOTO)("no credentials"),
        library("gcsfs.retry.HttpError")("403"),
        BAD_CERTIFICATE,
        answer("AccessDenied"),
        FileNotFoundError("gone"),
        OSError(errno.ENOSPC, "full"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_are_raised_at_once_as_oserrors(error: Exception, clock: Clock) -> None:
    with pytest.raises(OSError) as raised:
        patiently(failing(error, 1e9, clock), "x")
    assert raised.value is error or raised.value.__cause__ is error
    assert clock.pauses == []


def test_a_mistake_of_our_own_stays_what_it_is(clock: Clock) -> None:
    with pytest.raises(TypeError):
        patiently(failing(TypeError("argument"), 1e9, clock), "x")


def test_the_probe_does_not_blame_a_store_that_is_away() -> None:
    from tests.unit.spark.test_wal import Memory

    store = Memory()

    def away(name: str, data: bytes) -> bool:
        raise ConnectionError("walPath could not be reached")

    store.create = away  # type: ignore[method-assign]
    with pytest.raises(ConnectionError, match="could not be reached"):
        store.probe()
