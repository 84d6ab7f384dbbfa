"""Names of options of other clients and of task queues: one table leads to the names here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any
from unittest.mock import Mock

import pytest

from gnsqsync import (
    ConnectionOptions,
    KeyWindow,
    Message,
    NsqdHTTP,
    Reader,
    ReaderGroup,
    Reject,
    Requeue,
    TopicGroup,
    Writer,
    typed,
)
from gnsqsync.dead_letters import DeadLetters
from gnsqsync.errors import ConfigError
from gnsqsync.hints import (
    _BATCHING,
    _ELSEWHERE,
    _PUBLISHING,
    _REQUEUING,
    meant,
    right_name,
    sentence,
)
from gnsqsync.keywords import note_right_name
from gnsqsync.process.settings import known_options
from tests.support.texts import DOCS

# Arguments of Reader and Writer, which settings name in another way, and of their methods.
OURS = known_options() | {
    "body",
    "channel",
    "topic",
    "handler",
    "lookupd_http_addresses",
    "nsqd_tcp_addresses",
    "options",
}
CONSUMER = {"nsqd_tcp_addresses": "127.0.0.1:4150"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("max_tries", "did you mean 'max_attempts'?"),
        ("message_handler", "did you mean 'handler'?"),
        ("tls_v1", "did you mean 'tls'?"),
        ("tls_options", "'tls_ca_file'"),
        ("timeout", "'connect_timeout' limits connecting"),
        ("delay", "publish(..., defer=seconds)"),
        ("maxAttempts", "did you mean 'max_attempts'?"),
        ("MaxInFlight", "did you mean 'max_in_flight'?"),
        ("lookupdHTTPAddresses", "did you mean 'lookupd_http_addresses'?"),
        ("TLSConfig", "did you mean 'tls'?"),
        ("--max-in-flight", "did you mean 'max_in_flight'?"),
        ("prefetch_count", "did you mean 'max_in_flight'?"),
        ("max_retries", "'max_attempts' counts the first try"),
        ("write_timeout", "'publish_timeout' is an option of something else"),
        ("max_atempts", "did you mean 'max_attempts'?"),
    ],
)
def test_a_reader_leads_to_the_right_name(given: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        # Other errors come after this one: without a handler there is no time_limit.
        Reader("t", "c", time_limit=1, **CONSUMER, **{given: 1})  # type: ignore[arg-type]
    assert f"Reader has no option {given!r}; " in str(caught.value)
    assert told in str(caught.value)


def test_servers_under_another_name_are_told_before_servers_are_missed() -> None:
    with pytest.raises(ConfigError, match="did you mean 'nsqd_tcp_addresses'"):
        Reader("t", "c", nsqd="127.0.0.1:4150")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="'max_attempts' is an option of something else"):
        Writer(max_tries=3)  # type: ignore[call-arg]


WRITER = Writer(options=ConnectionOptions())
READER = Reader("t", "c", nsqd_tcp_addresses="127.0.0.1:4150")
# Calls of the public interface under a name of another client -> what the error says.
CALLS: list[tuple[Callable[..., object], str, str]] = [
    (ConnectionOptions, "tls_v1", "did you mean 'tls'?"),
    (ConnectionOptions, "timeout", "'connect_timeout' limits connecting"),
    (ConnectionOptions, "max_tries", "'max_attempts' is an option of something else"),
    (partial(replace, ConnectionOptions()), "snapy", "did you mean 'snappy'?"),
    (partial(ReaderGroup, ()), "max_inflight", "did you mean 'max_in_flight'?"),
    (partial(TopicGroup, "t", print), "lookupd", "did you mean 'lookupd_http_addresses'?"),
    (partial(NsqdHTTP, "h:1"), "tls_root_ca_file", "did you mean 'tls_ca_file'?"),
    (KeyWindow, "max_size", "did you mean 'size'?"),
    (partial(typed, int), "namee", "did you mean 'name'?"),
    (partial(DeadLetters, "t"), "lookupd", "did you mean 'lookupd_http_addresses'?"),
    (partial(NsqdHTTP("h:1").pub, "t", b"x"), "delay", "it is 'defer', in seconds"),
    (partial(NsqdHTTP("h:1").mpub, "t"), "messages", "did you mean 'bodies'?"),
    (Requeue, "countdown", "did you mean 'delay'?"),
    (Requeue, "time_ms", "it is 'delay', in seconds"),
    (Requeue, "max_retries", "the Reader has 'max_attempts'"),
    (partial(Requeue, 5), "backof", "did you mean 'backoff'?"),
    (Reject, "reasons", "did you mean 'reason'?"),
    (READER.batches, "size", "did you mean 'max_messages'?"),
    (READER.batches, "timeout", "did you mean 'max_wait'?"),
    (READER.stop, "timeouts", "did you mean 'timeout'?"),
    (WRITER.close, "timeout_", "did you mean 'timeout'?"),
]


@pytest.mark.parametrize(("call", "given", "told"), CALLS)
def test_a_call_leads_to_the_right_name(call: Callable[..., object], given: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call(**{given: b"1"})
    assert f" has no option {given!r}" in str(caught.value)
    assert told in str(caught.value)


def test_another_error_of_a_call_stays_what_it_is() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'make_reader'"):
        TopicGroup("t", lookupd_http_addresses="h:1")  # type: ignore[call-arg]


def test_the_names_of_publishes_lead_only_to_names_that_are_there() -> None:
    of_publishes = {
        *signature(Writer.publish).parameters,
        *signature(Writer.publish_many).parameters,
    }
    assert not _PUBLISHING.keys() & of_publishes
    for foreign, here in _PUBLISHING.items():
        names = {here} if here.isidentifier() else set(re.findall(r"'([a-z_]+)'(?!:)", here))
        assert names <= of_publishes | OURS | {"alias"}, foreign


@pytest.mark.parametrize(
    ("table", "call"), [(_REQUEUING, Message.requeue), (_BATCHING, Reader.batches)]
)
def test_names_of_requeues_and_batches_lead_only_to_names_that_are_there(
    table: dict[str, str], call: Callable[..., object]
) -> None:
    parameters = signature(call).parameters.keys() - {"self"}
    assert not table.keys() & parameters
    for foreign, here in table.items():
        names = {here} if here.isidentifier() else set(re.findall(r"'([a-z_]+)'", here))
        assert names <= parameters | {"max_attempts"}, foreign
        assert meant(foreign, parameters), foreign


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda message: message.requeue(countdown=5), ["did you mean 'delay'?"]),
        (lambda message: WRITER.publish("t", b"", delay=5), ["it is 'defer', in seconds"]),
        (lambda message: WRITER.publish("t", b"", zzz=5), []),
        # A signature of the user's, and a failure that says nothing of names.
        (lambda message: (lambda: None)(delay=5), []),
        (lambda message: message.requeue("x"), []),
    ],
)
def test_a_misspelt_call_in_a_handler_fails_with_the_right_name(
    call: Callable[[Any], object], told: list[str]
) -> None:
    """Publishes and answers check no names, so the failure of the handler gets a note."""
    message = Message(b"0" * 16, b"", 1, 0, Mock())
    with pytest.raises(TypeError) as caught:
        call(message)
    note_right_name(caught.value, Message, Writer)
    assert getattr(caught.value, "__notes__", []) == told


def test_nothing_is_said_of_a_name_that_is_like_none() -> None:
    assert meant("zzz", OURS) == ""
    with pytest.raises(ConfigError, match=r"has no option 'zzz'$"):
        Reader("t", "c", zzz=1, **CONSUMER)  # type: ignore[arg-type]


def test_the_table_leads_only_to_names_that_are_there() -> None:
    assert not _ELSEWHERE.keys() & OURS, "an option of ours is not foreign"
    for foreign, here in _ELSEWHERE.items():
        names = {here} if here.isidentifier() else set(re.findall(r"'([a-z_]+)'", here))
        assert names <= OURS | {"eager", "gnsqsync"}, foreign
        assert foreign == right_name(foreign) or here.isidentifier(), foreign
        assert sentence(meant(foreign, OURS))[-1] in ".?", foreign


@pytest.mark.parametrize("page", ["pynsq", "gnsq"])
def test_the_pages_on_migration_and_the_table_agree(page: str) -> None:
    """An option of the other client has its name here, or leads to what the page says."""
    text = (DOCS / "migration" / f"{page}.rst").read_text(encoding="utf-8")
    options = text.split("\nOptions of ", 1)[1].split("\nMethods of ", 1)[0]
    rows = re.findall(r"^   \* - ``(\w+)``\n     - .*\n     - (.*)$", options, re.MULTILINE)
    assert len(rows) > 20
    for foreign, cell in rows:
        here = re.findall(r"``(\w+)``", cell)
        if here == [foreign]:
            assert foreign in OURS
        elif foreign in OURS:
            continue  # of the Writer, where it has another meaning
        else:
            told = meant(foreign, OURS)
            assert told, foreign
            assert all(f"'{name}'" in told for name in here), (foreign, told)


def test_a_sentence() -> None:
    assert sentence("did you mean 'a'?") == "Did you mean 'a'?"
    assert sentence("log lines name it") == "Log lines name it."
