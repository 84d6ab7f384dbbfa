"""Two handlers of a process that claim one channel, and dead letters that go round."""

from __future__ import annotations

import re
from functools import partial
from types import FunctionType
from typing import Any

import pytest

from gnsqsync import Message, Reader, ReaderGroup
from gnsqsync.errors import ConfigError
from gnsqsync.options import handler_name
from gnsqsync.reader.claims import Claim, check_claims, problems_of_claims, servers_of


def mail(message: Message) -> None: ...


def store(message: Message) -> None: ...


def claim(topic: str, channel: str, handler: Any = mail, **fields: Any) -> Claim:
    fields = {"servers": servers_of("127.0.0.1:4150"), "where": handler_name(handler), **fields}
    return Claim(topic=topic, channel=channel, handler=handler, **fields)


def reader(topic: str, channel: str, handler: Any = mail, **options: Any) -> Reader:
    return Reader(topic, channel, handler, **{"nsqd_tcp_addresses": "127.0.0.1:4150", **options})


def test_both_functions_are_named_and_what_would_be_right() -> None:
    (text,) = problems_of_claims([claim("paid", "mail"), claim("paid", "mail", store)])
    for word in (f"{__name__}.mail", f"{__name__}.store", "both consume paid/mail"):
        assert word in text
    assert "another channel" in text
    assert "give both shared=True" in text


@pytest.mark.parametrize("other", [claim("paid", "store"), claim("made", "mail")])
def test_other_channels_and_topics_are_no_clash(other: Claim) -> None:
    check_claims([claim("paid", "mail"), other])


@pytest.mark.parametrize(
    ("one", "other", "meets"),
    [
        (servers_of("a:4150,b:4150"), servers_of("B"), True),
        (servers_of("localhost:4150"), servers_of("[::1]:4150,c:1"), True),
        (servers_of(lookupd="http://u:p@A:4161/x"), servers_of(lookupd="a"), True),
        (servers_of(lookupd="https://a"), servers_of(lookupd="http://a"), False),
        (servers_of("unix:///run/nsqd"), servers_of("unix:///run/nsqd"), True),
        (servers_of("a:4150"), servers_of(lookupd="a:4150"), False),
        (servers_of("a"), servers_of("b"), False),
    ],
)
def test_entries_with_a_common_server_are_of_one_cluster(
    one: frozenset[str], other: frozenset[str], meets: bool
) -> None:
    claims = [claim("t", "c", servers=one), claim("t", "c", store, servers=other)]
    assert bool([*problems_of_claims(claims)]) is meets


def test_shared_must_be_said_by_both() -> None:
    shared = claim("paid", "mail", shared=True)
    (text,) = problems_of_claims([shared, claim("paid", "mail", store)])
    assert f"give {__name__}.store shared=True" in text
    check_claims([shared, claim("paid", "mail", store, shared=True)])


def test_entries_of_one_owner_are_handled_alike() -> None:
    check_claims([claim("t", "c", owner="a"), claim("t", "c", owner="a")])
    with pytest.raises(ConfigError, match="both consume t/c"):
        check_claims([claim("t", "c", owner="a"), claim("t", "c", owner="b")])


def test_a_module_that_is_imported_under_two_names_is_told() -> None:
    twin = FunctionType(mail.__code__, {})
    twin.__module__ = "shop"
    (text,) = problems_of_claims(
        [claim("t", "c"), claim("t", "c", partial(twin), where="shop.mail")]
    )
    assert "imported under two names" in text
    assert f"{__name__}.mail and shop.mail" in text


def test_dead_letters_that_go_round_are_refused() -> None:
    circle = [
        claim("a", "x", dead_letter_topic="b"),
        claim("b", "x", store, dead_letter_topic="c"),
        claim("c", "x", dead_letter_topic="a"),
        claim("c", "y", dead_letter_topic="end"),
    ]
    (text,) = problems_of_claims(circle)
    assert f"{__name__}.store gives up messages of b to c" in text
    assert "goes round for ever" in text
    check_claims(circle[:2] + circle[3:])
    elsewhere = claim("c", "x", dead_letter_topic="a", servers=servers_of("elsewhere"))
    check_claims([*circle[:2], elsewhere])


def test_a_group_refuses_readers_that_take_each_others_messages() -> None:
    text = re.escape(f"{__name__}.mail and {__name__}.store both consume paid/mail")
    with pytest.raises(ConfigError, match=text):
        ReaderGroup([reader("paid", "mail"), reader("paid", "mail", store)])
    ReaderGroup([reader("paid", "mail", shared=True), reader("paid", "mail", store, shared=True)])
    ReaderGroup([reader("paid", "mail"), reader("paid", "mail", store, nsqd_tcp_addresses="b")])
    with pytest.raises(ConfigError, match="shared is 1; it must be True or False"):
        reader("paid", "mail", shared=1)
