"""What an exception of a handler means, by the lists of the Reader."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from gnsqsync import Discard, Reader, Reject, Requeue
from gnsqsync.errors import ConfigError
from gnsqsync.reader.verdicts import Verdict, Verdicts


def verdicts(
    retry_on: Any = None, reject_on: Any = (), discard_on: Any = (), backoff: Any = True
) -> Verdicts:
    return Verdicts(retry_on, reject_on, discard_on, backoff)


def test_without_lists_all_but_the_verdicts_is_tried_again() -> None:
    rules = verdicts()
    assert rules.of(ValueError()) is rules.of(Requeue()) is rules.of(SystemExit()) is Verdict.RETRY
    assert rules.of(Reject("bad")) is Verdict.REJECT
    assert rules.of(Discard()) is Verdict.DISCARD


def test_the_nearer_class_decides() -> None:
    rules = verdicts(retry_on=OSError, reject_on=[ValueError, ConnectionError], discard_on=KeyError)
    assert rules.of(TimeoutError()) is Verdict.RETRY
    assert rules.of(ConnectionResetError()) is Verdict.REJECT
    assert rules.of(UnicodeDecodeError("utf-8", b"", 0, 1, "")) is Verdict.REJECT
    assert rules.of(KeyError()) is Verdict.DISCARD


def test_with_a_list_of_retries_all_else_is_rejected() -> None:
    rules = verdicts(retry_on=(OSError,))
    assert rules.of(ValueError()) is Verdict.REJECT
    # An exit is the environment's.
    assert rules.of(SystemExit()) is rules.of(Requeue()) is Verdict.RETRY
    assert verdicts(retry_on=[]).of(OSError()) is Verdict.REJECT


def test_the_filter_says_what_counts_for_the_backoff(caplog: pytest.LogCaptureFixture) -> None:
    rules = verdicts(backoff=lambda error: isinstance(error, OSError))
    assert rules.backs_off(OSError())
    assert not rules.backs_off(ValueError())
    assert not verdicts(backoff=False).backs_off(OSError())

    def broken(error: BaseException) -> bool:
        raise RuntimeError("a bug")

    with caplog.at_level(logging.ERROR):
        assert verdicts(backoff=broken).backs_off(ValueError())
    assert "backoff failed on ValueError()" in caplog.text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"retry_on": "ValueError"}, "retry_on is 'ValueError'; it must be an exception class"),
        ({"reject_on": [ValueError, int]}, "each a subclass of Exception"),
        ({"discard_on": [KeyboardInterrupt]}, "each a subclass of Exception"),
        ({"discard_on": ValueError()}, "it must be an exception class or a list of them"),
        (
            {"reject_on": [ValueError], "discard_on": [ValueError]},
            "ValueError is in discard_on, and means reject_on already",
        ),
        ({"reject_on": Requeue}, "Requeue is in reject_on, and means retry_on already"),
        (
            {"backoff": "no"},
            "backoff is 'no'; it must be True, False, 'every_failure' or a function",
        ),
        ({"backoff": lambda: True}, "it must be a callable that takes the exception"),
        ({"max_age": 0, "on_expired": "discard"}, "max_age is 0"),
        ({"max_age": float("inf"), "on_expired": "discard"}, "max_age is inf"),
        ({"max_age": 60}, "on_expired is None; it must be 'dead_letter', 'discard' or a callable"),
        ({"max_age": 60, "on_expired": "drop"}, "on_expired is 'drop'; it must be"),
        ({"max_age": 60, "on_expired": "dead_letter"}, "give dead_letter_topic, too"),
        ({"on_expired": "discard"}, "on_expired is 'discard' without max_age"),
        ({"rate_limit": 0}, "rate_limit is 0; it must be messages a second, 0.001 to 1,000,000"),
        ({"rate_limit": -5}, "rate_limit is -5"),
        ({"rate_limit": "5/s"}, "rate_limit is '5/s'"),
        ({"rate_limit": float("nan")}, "rate_limit is nan"),
        ({"rate_limit": 5, "rate_burst": 0}, "rate_burst is 0"),
        ({"rate_burst": 5}, "rate_burst is 5 without rate_limit; give both"),
        ({"headers": 1}, "headers is 1; it must be True or False"),
        ({"middleware": [object]}, "it must be a list of gnsqsync.Middleware objects"),
    ],
)
def test_bad_rules(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Reader("t", "c", lambda message: None, nsqd_tcp_addresses="127.0.0.1:4150", **options)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"retry_on": ValueError}, {"backoff": False}, {"max_age": 5, "on_expired": "discard"}],
)
def test_options_about_handlers_need_a_handler(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is for handlers; this Reader has none"):
        Reader("t", "c", nsqd_tcp_addresses="127.0.0.1:4150", **options)
