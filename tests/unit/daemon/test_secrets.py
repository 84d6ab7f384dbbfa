"""Addresses and URLs without their secrets."""

from __future__ import annotations

import pytest

from gnsqsync.admin import AdminOptions
from gnsqsync.daemon.flags import config_value
from gnsqsync.daemon.secrets import server_of, shown


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("h:4161", "h:4161"),
        ("[::1]:4161", "[::1]:4161"),
        ("ann:pa55@h:4161", "h:4161"),
        ("ann:pa55@h:4161/x?t=tok3n", "h:4161/x"),
        ("http://h", "http://h"),
        ("http://h:1/a/b", "http://h:1/a/b"),
        ("http://ann:pa55@h:1/a", "http://h:1/a"),
        ("http://pa55@h", "http://h"),
        ("http://ann:pa/55@h:1", "http://h:1"),
        ("http://ann:p@55@h:1", "http://h:1"),
        ("http://ann:pa?55@h:1", "http://..."),
        ("http://ann:pa#55@h:1", "http://..."),
        ("http://h/a?token=tok3n", "http://h/a"),
        ("http://h/a?mail=a@tok3n", "http://..."),
        ("http://h/#tok3n", "http://h/"),
        ("/etc/a@b/key.pem", "/etc/a@b/key.pem"),
        ("[nsqadmin] ", "[nsqadmin] "),
        ("nsq.%s", "nsq.%s"),
        ("", ""),
    ],
)
def test_flags_that_are_shown(text: str, seen: str) -> None:
    assert shown(text) == seen


def test_the_path_of_a_webhook_is_its_password() -> None:
    assert server_of("https://ann:pa55@hooks.example:1/T0/tok3n?a=b") == "https://hooks.example:1"
    assert server_of("") == ""


def test_options_show_no_secret() -> None:
    options = AdminOptions(
        lookupd_http_address=("ann:pa55@h:4161",),
        nsqd_http_address=("ann:pa55@h:4151",),
        graphite_url="http://ann:pa55@graphite/x?token=tok3n",
        notification_http_endpoint="https://hooks.example/T0/tok3n",
    )
    values = [
        config_value(options, name)
        for name in (
            "nsqlookupd_http_addresses",
            "nsqd_http_addresses",
            "graphite_url",
            "notification_http_endpoint",
        )
    ]
    assert values == [["h:4161"], ["h:4151"], "http://graphite/x", "https://hooks.example"]
    assert "pa55" not in repr(options)
    assert "tok3n" not in repr(options)
