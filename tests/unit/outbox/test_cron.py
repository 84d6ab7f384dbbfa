"""Cron texts as Debian's cron takes them, and their times when clocks are changed."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim, CronSimError

from gnsqsync.errors import ConfigError
from gnsqsync.outbox.cron import Cron, check_zone

UTC_ZONE = ZoneInfo("UTC")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def times(text: str, zone: str, after: str, count: int) -> list[str]:
    found = islice(Cron(text, ZoneInfo(zone)).times(at(after)), count)
    return [f"{moment:%m-%d %H:%M}" for moment in found]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 3 * *", "it has 4 fields"),
        ("", "it has 0 fields"),
        ("0 * * * * *", "six fields; seconds are not possible"),
        ("@reboot", "'@reboot', which is no time"),
        ("@every 5m", "which Debian's cron does not know"),
        ("60 * * * *", "minute: '60' must be a number from 0 to 59"),
        ("-1 * * * *", "minute: '' must be a number"),
        ("٣ * * * *", "minute: '٣' must be a number"),
        ("* 24 * * *", "hour: '24'"),
        ("0 0 0 * *", "day of the month: '0'"),
        ("0 0 L * *", "day of the month: 'L' must be a number from 1 to 31"),
        ("0 0 15W * *", "day of the month: '15W'"),
        ("0 0 * january *", "month: 'january' must be a number from 1 to 12, or a name"),
        ("0 0 * * 8", "day of the week: '8'"),
        ("0 0 * * mon#2", "day of the week: 'mon#2'"),
        ("0 0 ? * *", "day of the month: '?'"),
        ("*/0 * * * *", "the step '0' must be a number, 1 or more"),
        ("5/15 * * * *", "write '5-59/15'"),
        ("0 0 * * fri-mon", "the range 'fri-mon' runs backwards"),
        ("1,,2 * * * *", "minute: ''"),
        ("0 3\n* * *", "one line of 200 characters"),
        ("0 " * 101, "one line of 200 characters"),
        (5, "it must be a str such as"),
        (None, "it must be a str such as"),
    ],
)
def test_a_text_that_debian_s_cron_refuses_is_refused_by_name(text: object, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Cron(text, UTC_ZONE)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("@hourly", "2026-01-01T00:00", ["01-01 01:00", "01-01 02:00"]),
        ("@daily", "2026-01-01T00:00", ["01-02 00:00", "01-03 00:00"]),
        ("@Midnight", "2026-01-01T00:00", ["01-02 00:00"]),
        ("@weekly", "2026-01-01T00:00", ["01-04 00:00", "01-11 00:00"]),
        ("@monthly", "2026-01-01T00:00", ["02-01 00:00"]),
        ("@yearly", "2026-01-01T00:00", ["01-01 00:00"]),
        ("@annually", "2026-01-01T00:00", ["01-01 00:00"]),
        # Either of two days that are given; both beside a star.
        ("0 0 13 * fri", "2026-03-01T00:00", ["03-06 00:00", "03-13 00:00", "03-20 00:00"]),
        ("0 0 */2 * mon", "2026-03-01T00:00", ["03-09 00:00", "03-23 00:00"]),
        ("0 0 * * 7", "2026-03-01T00:00", ["03-08 00:00"]),
        ("0 0 * * 5-7", "2026-03-01T00:00", ["03-06 00:00", "03-07 00:00", "03-08 00:00"]),
        ("0 0 29 FEB *", "2026-03-01T00:00", ["02-29 00:00", "02-29 00:00"]),
        ("0-30/15,59 1 * * *", "2026-03-01T01:00", ["03-01 01:15", "03-01 01:30", "03-01 01:59"]),
    ],
)
def test_times(text: str, after: str, expected: list[str]) -> None:
    assert times(text, "UTC", after, len(expected)) == expected


def test_a_text_without_a_time_is_refused_and_the_calendar_ends() -> None:
    with pytest.raises(ConfigError, match="at no time in 50 years"):
        Cron("0 0 30 2 *", UTC_ZONE).next(at("2026-01-01T00:00"))
    for zone in ("UTC", "America/New_York", "Australia/Lord_Howe"):
        for text in ("* * * * *", "0 0 * * *"):
            with pytest.raises(ConfigError, match="at no time in 50 years"):
                Cron(text, ZoneInfo(zone)).next(datetime.max.replace(tzinfo=UTC))


def test_kept_texts_of_former_versions() -> None:
    assert Cron("5/15 * * * *", UTC_ZONE, lenient=True).next(at("2026-01-01T00:06")) == at(
        "2026-01-01T00:20"
    )
    # Relays of a former version read what is stored.
    assert Cron("@daily", UTC_ZONE).text == "0 0 * * *"


@pytest.mark.parametrize(
    ("zone", "text", "after", "expected"),
    [
        # Forward: 02:00 to 03:00, to 03:00, 02:00 to 02:30.
        ("Europe/Berlin", "30 2 * * *", "2026-03-28T12:00", ["03-29 01:00", "03-30 00:30"]),
        ("America/New_York", "30 2 * * *", "2026-03-07T12:00", ["03-08 07:00", "03-09 06:30"]),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03T12:00", ["10-03 15:30", "10-04 15:15"]),
        ("Europe/Berlin", "*/30 * * * *", "2026-03-29T00:30", ["03-29 01:00", "03-29 01:30"]),
        # Back: 02:00 to 03:00 twice, 01:00 to 02:00 twice, 01:30 to 02:00 twice.
        ("Europe/Berlin", "30 2 * * *", "2026-10-24T12:00", ["10-25 00:30", "10-26 01:30"]),
        ("Europe/Berlin", "30 2 * * *", "2026-10-25T01:10", ["10-26 01:30"]),
        ("America/New_York", "30 1 * * *", "2026-10-31T12:00", ["11-01 05:30", "11-02 06:30"]),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04T12:00", ["04-04 14:45", "04-05 15:15"]),
        (
            "Europe/Berlin",
            "*/30 2 * * *",
            "2026-10-24T12:00",
            ["10-25 00:00", "10-25 00:30", "10-25 01:00", "10-25 01:30", "10-26 01:00"],
        ),
        (
            "Australia/Lord_Howe",
            "*/10 5 * * *",
            "2026-04-04T12:00",
            ["04-04 18:30", "04-04 18:40", "04-04 18:50", "04-04 19:00", "04-04 19:10"],
        ),
        ("America/Havana", "0 0 * * *", "2026-10-31T12:00", ["11-01 04:00", "11-02 05:00"]),
    ],
)
def test_the_clocks_are_changed(zone: str, text: str, after: str, expected: list[str]) -> None:
    assert times(text, zone, after, len(expected)) == expected


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize("text", ["*/10 * * * *", "30 2 * * *", "0,45 1-3 * * *"])
def test_each_time_comes_after_the_one_before(zone: str, text: str) -> None:
    cron = Cron(text, ZoneInfo(zone))
    for start in (
        "2026-03-07",
        "2026-03-28",
        "2026-04-04",
        "2026-10-03",
        "2026-10-24",
        "2026-10-31",
    ):
        found = [*islice(cron.times(at(f"{start}T06:00")), 60)]
        assert found == sorted({*found})
        for before, after in pairwise(found):
            assert cron.next(before) == cron.next(after - timedelta(microseconds=1)) == after
            assert cron.last(found[0], after - timedelta(seconds=1)) == before


def test_the_last_time_of_a_long_while() -> None:
    first, now = at("2001-01-01T00:00"), at("2026-06-15T12:34:56")
    for text, expected in (
        ("* * * * *", "2026-06-15T12:34"),
        ("@daily", "2026-06-15T00:00"),
        ("@monthly", "2026-06-01T00:00"),
        ("@yearly", "2026-01-01T00:00"),
        ("0 0 29 2 *", "2024-02-29T00:00"),
    ):
        assert Cron(text, UTC_ZONE).last(first, now) == at(expected)
    assert Cron("0 0 29 2 *", UTC_ZONE).last(at("2026-01-01T00:00"), now) == at("2026-01-01T00:00")


def test_cron_texts_mean_the_same_to_another_reader_of_debian_s_texts() -> None:
    chance = random.Random(10)
    ranges = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))

    def item(low: int, high: int) -> str:
        first, last = sorted(chance.sample(range(low, high + 1), 2))
        return chance.choice(
            ("*", "*", f"*/{first + 1}", f"{first}", f"{first}-{last}", f"{first}-{last}/2")
        )

    compared = 0
    for _ in range(300):
        text = " ".join(
            ",".join(item(*span) for _ in range(chance.randint(1, 2))) for span in ranges
        )
        after = at("2026-01-01T00:00") + timedelta(minutes=chance.randrange(525_600))
        try:
            expected = [*islice(CronSim(text, after), 3)]
        except CronSimError:
            continue
        assert [*islice(Cron(text, UTC_ZONE).times(after), 3)] == expected, text
        compared += bool(expected)
    assert compared > 200


@pytest.mark.parametrize("name", ["Vienna", "", "../etc/passwd", "Europe", "a\0b", None])
def test_a_zone_that_this_machine_does_not_have(name: object) -> None:
    with pytest.raises(ConfigError, match="which this machine does not have; it must be a name"):
        check_zone(name)
