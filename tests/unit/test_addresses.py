"""Addresses as users write them."""

from __future__ import annotations

from typing import Any

import pytest

from gnsqsync.addresses import Address, http_urls, parse_address, parse_addresses
from gnsqsync.http import LookupdHTTP


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("nsqd-1.example.com", "nsqd-1.example.com", 4150),
        ("10.0.0.7", "10.0.0.7", 4150),
        ("[::1]", "::1", 4150),
    ],
)
def test_default_ports(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(host, port)
    assert http_urls(text) == (f"http://{text}:4161",)


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("host:5", Address("host", 5), "host:5"),
        ("[fe80::1]:5", Address("fe80::1", 5), "[fe80::1]:5"),
        ("unix:///run/nsqd.sock", Address("", 0, "/run/nsqd.sock"), "unix:///run/nsqd.sock"),
        (("host", 5), Address("host", 5), "host:5"),
        (Address("host", 5), Address("host", 5), "host:5"),
    ],
)
def test_forms(text: Any, address: Address, shown: str) -> None:
    assert parse_address(text) == address
    assert str(address) == shown
    assert parse_address(shown) == address


@pytest.mark.parametrize(
    "value", ["a:1, b:2", ["a:1", "b:2"], [("a", 1), ("b", 2)], ("a:1", "b:2", "a:1")]
)
def test_several(value: Any) -> None:
    assert parse_addresses(value) == (Address("a", 1), Address("b", 2))


def test_one_pair_is_one_address() -> None:
    assert parse_addresses(("a", 1)) == (Address("a", 1),)


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("http://host/lookup", "http://host"),
        ("http://host:4161/lookup/", "http://host:4161"),
        ("http://host/lookup?token=a/lookup", "http://host?token=a/lookup"),
        ("https://ann:s@host/nsq/lookup?token=t", "https://ann:s@host/nsq?token=t"),
        ("host:4161/lookup?token=t", "http://host:4161?token=t"),
        # nsqlookupd answers the first of two topics, so a copied one would be asked for always.
        ("http://host/lookup?topic=x&token=t", "http://host?topic=x&token=t"),
        ("host/lookup", "http://host:4161"),
        ("http://host/nsq?token=t", "http://host/nsq?token=t"),
        ("http://lookup", "http://lookup"),
        ("http://host/prelookup", "http://host/prelookup"),
    ],
)
def test_an_address_of_nsqlookupd_may_end_with_its_question(given: str, asked: str) -> None:
    """pynsq and go-nsq ask the path that is given, and ``/lookup`` if there is none."""
    assert http_urls([given, asked]) == (asked,)
    url, shown = LookupdHTTP(given)._join("/lookup", {"topic": "t"})
    assert url.startswith(asked.partition("?")[0] + "/lookup?")
    assert url.endswith("topic=t") and url.count("topic=") == 1
    assert "token" not in shown
    # An nsqd has no such question.
    if "://" in given:
        assert http_urls(given, 4151) == (given,)


def test_urls_are_kept_whole() -> None:
    url = "https://ann:secret@example.com/nsq/?key=k"
    assert http_urls([url, "a:1", url]) == (url, "http://a:1")
