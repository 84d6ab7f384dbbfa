"""Instants as local times of a database: their order and the instants survive."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

pytest.importorskip("django")

from gnsqsync.django.moments import local_form, of_local_form

CHANGES = [
    ("Europe/Berlin", "2026-03-29T01:00"),
    ("Europe/Berlin", "2026-10-25T01:00"),
    ("America/New_York", "2026-03-08T07:00"),
    ("America/New_York", "2026-11-01T06:00"),
    ("Australia/Lord_Howe", "2026-04-04T15:00"),
    ("Australia/Lord_Howe", "2026-10-03T15:30"),
    ("America/Havana", "2026-11-01T05:00"),
    ("UTC", "2026-11-01T05:00"),
]


@pytest.mark.parametrize(("zone", "change"), CHANGES)
def test_order_and_instants_survive(zone: str, change: str) -> None:
    its_zone = ZoneInfo(zone)
    moment = datetime.fromisoformat(change).replace(tzinfo=UTC) - timedelta(hours=3)
    before = None
    for _ in range(6 * 60):
        kept = local_form(moment, its_zone)
        assert before is None or kept > before
        assert of_local_form(kept, its_zone).astimezone(UTC) == moment
        # A former version, which reads it beside this one, is wrong by the repeated time at most.
        assert abs(kept.replace(tzinfo=its_zone) - moment) <= timedelta(hours=1)
        before, moment = kept, moment + timedelta(minutes=1)


def test_the_last_second_of_the_first_pass_gives_way() -> None:
    zone = ZoneInfo("Europe/Berlin")
    moment = datetime(2026, 10, 25, 0, 59, 58, tzinfo=UTC)
    before = local_form(moment, zone)
    for _ in range(400):
        moment += timedelta(seconds=0.01)
        kept = local_form(moment, zone)
        assert before <= kept
        assert abs(of_local_form(kept, zone) - moment) < timedelta(seconds=1)
        before = kept


def test_moments_that_a_former_version_wrote() -> None:
    zone = ZoneInfo("Europe/Berlin")
    for local, moment in (
        ("2026-10-25T01:59:59", "2026-10-24T23:59:59"),
        ("2026-10-25T02:30", "2026-10-25T00:30"),
        ("2026-10-25T03:00", "2026-10-25T02:00"),
        ("2026-03-29T02:30", "2026-03-29T01:30"),
        ("2026-07-01T12:00", "2026-07-01T10:00"),
    ):
        found = of_local_form(datetime.fromisoformat(local), zone)
        assert found.astimezone(UTC) == datetime.fromisoformat(moment).replace(tzinfo=UTC)
