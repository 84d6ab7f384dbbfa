"""Keys and headers of the outbox, and the schedule; run by manage.py test."""

import itertools
from datetime import UTC, datetime, timedelta
from unittest import mock

from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, transaction
from django.test import TestCase, override_settings
from django.utils import timezone

from gnsqsync import Middleware
from gnsqsync.django import outbox, schedule
from gnsqsync.django.outbox.models import OutboxMessage, PeriodicMessage
from gnsqsync.django.outbox.periodic import PeriodicMessages
from gnsqsync.django.outbox.relay import OutboxStore
from gnsqsync.django.test import captured_messages
from gnsqsync.errors import ConfigError, NotSent, OutcomeUnknown
from gnsqsync.outbox.relay import Relay


class Carry(Middleware):
    def publish(self, publication, proceed):
        publication.headers["by"] = "carry"
        return proceed(publication)


ENTRY = {"NSQD": ["127.0.0.1:1"], "OPTIONS": {"headers": True}, "MIDDLEWARE": [Carry()]}
with_headers = override_settings(GNSQSYNC={"default": ENTRY, "other": {"BACKEND": "memory"}})


# In UTC: forward, and back.
CHANGES = {
    "Europe/Berlin": ("2030-03-31T01:00", "2030-10-27T01:00"),
    "America/New_York": ("2030-03-10T07:00", "2030-11-03T06:00"),
    "Australia/Lord_Howe": ("2030-10-05T15:30", "2030-04-06T15:00"),
}


def move(now=None, **options):
    """What a relay of that time publishes, as (topic, body, key)."""
    relay = Relay(OutboxStore("default"), **options)
    with captured_messages() as messages, mock.patch("gnsqsync.outbox.relay.datetime") as clock:
        clock.now.return_value = now or datetime.now(UTC)
        while relay.move_batch():
            pass
    return [(one.topic, one.body.decode(), one.headers.get("key")) for one in messages]


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def wrong(case, function, *arguments, **options):
    with case.assertRaises(ConfigError) as caught, transaction.atomic():
        function(*arguments, **options)
    return str(caught.exception)


@with_headers
class BadRows(TestCase):
    def test_rows_that_cannot_be_read_or_sent_do_not_stop_the_others(self):
        outbox.publish("orders", "first")
        for changes in (
            {"topic": "no good"},
            {"headers": ["no", "dict"], "topic": "list"},
            {"headers": {"a": 5}},
            {"body": b""},
            {"body": b"x" * 2_000_000},
            {"alias": "gone"},
        ):
            OutboxMessage.objects.create(
                **{"topic": "orders", "body": b"x", "headers": {}, "key": "k", **changes}
            )
        broken = OutboxMessage.objects.create(topic="orders", body=b"x", key="k")
        if connection.vendor == "sqlite":
            with connection.cursor() as cursor:
                table = OutboxMessage._meta.db_table
                cursor.execute("PRAGMA ignore_check_constraints = 1")
                cursor.execute(
                    f"UPDATE {table} SET body = 'text', headers = '{{' WHERE id = %s", [broken.pk]
                )
        outbox.publish("orders", "last")
        with self.assertLogs("gnsqsync.outbox") as logs:
            bodies = [body for _, body, _ in move()]
        self.assertEqual([body for body in bodies if body != "x"], ["first", "last"])
        left = dict(OutboxMessage.objects.values_list("last_error", "failed_at"))
        self.assertEqual(len(left), 7 if connection.vendor == "sqlite" else 6)
        for error, failed_at in left.items():
            self.assertEqual(failed_at is None, "gone" in error, error)
        self.assertEqual(sum("gone" in line for line in logs.output), 1)


@with_headers
class Keys(TestCase):
    def test_a_row_keeps_its_key_and_its_headers(self):
        outbox.publish("orders", "a", headers={"tenant": "north"})
        outbox.publish("orders", "b", headers={"key": "order-7"})
        outbox.publish_many("orders", ["c", "d"])
        rows = list(OutboxMessage.objects.order_by("pk"))
        self.assertEqual(len({row.key for row in rows}), 4)
        self.assertEqual(rows[0].headers, {"tenant": "north", "by": "carry"})
        self.assertEqual((rows[1].key, rows[1].headers), ("order-7", {"by": "carry"}))
        self.assertEqual(bytes(rows[0].body), b"a")
        with captured_messages() as messages, mock.patch.object(OutboxStore, "delete"):
            # It dies before it has deleted them, and another one comes.
            Relay(OutboxStore("default")).move_batch()
            Relay(OutboxStore("default")).move_batch()
        self.assertEqual([one.headers["key"] for one in messages], [row.key for row in rows] * 2)
        self.assertEqual(
            messages[0].headers, {"tenant": "north", "by": "carry", "key": rows[0].key}
        )

    def test_rows_from_before_there_were_keys(self):
        OutboxMessage.objects.create(topic="orders", body=b"old")
        first, again = [], []
        with mock.patch.object(OutboxStore, "delete"), captured_messages() as messages:
            Relay(OutboxStore("default")).move_batch()
            Relay(OutboxStore("default")).move_batch()
        first, again = messages
        self.assertEqual(first.body, b"old")
        self.assertRegex(first.headers["key"], r"^outbox-\d+-\d+\.\d{6}$")
        self.assertEqual(first.headers, again.headers)

    def test_a_message_that_is_too_long_with_its_envelope(self):
        says = wrong(self, outbox.publish, "orders", b"x" * 1048570)
        self.assertIn("max_msg_size", says)
        self.assertEqual(OutboxMessage.objects.count(), 0)

    def test_bad_headers(self):
        says = wrong(self, outbox.publish_many, "orders", ["a", "b"], headers={"key": "k"})
        self.assertIn("a key of its own", says)
        with override_settings(GNSQSYNC={"default": {"BACKEND": "memory"}}):
            self.assertIn(
                "headers=True", wrong(self, outbox.publish, "orders", "a", headers={"a": "b"})
            )


class Times(TestCase):
    def test_each_is_published_when_it_is_due(self):
        now = timezone.now()
        schedule.publish_at("orders", "month", now + timedelta(days=31), key="invoice")
        made = schedule.publish_after("orders", "hour", 3600)
        schedule.publish_after("orders", "week", timedelta(weeks=1))
        self.assertRegex(made, "^[0-9a-f]{32}$")
        self.assertEqual(outbox.lag().scheduled, 3)
        self.assertEqual(move(), [])
        self.assertEqual(move(now + timedelta(hours=1, minutes=1)), [("orders", "hour", None)])
        # The clock jumps back, and then a month ahead.
        self.assertEqual(move(now - timedelta(days=1)), [])
        self.assertEqual([body for _, body, _ in move(now + timedelta(days=32))], ["week", "month"])
        self.assertEqual(outbox.lag().scheduled, 0)

    @with_headers
    def test_the_key_is_that_of_the_message(self):
        now = timezone.now()
        self.assertEqual(schedule.publish_after("orders", "a", 5, key="k"), "k")
        made = schedule.publish_after("orders", "b", 6)
        self.assertEqual(
            move(now + timedelta(minutes=1)), [("orders", "a", "k"), ("orders", "b", made)]
        )
        two = {"key": "k", "headers": {"key": "l"}}
        self.assertIn("give one", wrong(self, schedule.publish_after, "orders", "a", 5, **two))

    def test_cancel_and_reschedule(self):
        now = timezone.now()
        for body, key in (("a", "1"), ("b", "1"), ("c", "2")):
            schedule.publish_after("orders", body, 3600, key=key)
        outbox.publish("orders", "d")
        self.assertEqual(schedule.reschedule("2", now + timedelta(hours=3)), 1)
        self.assertEqual(schedule.cancel("1"), 2)
        self.assertEqual(schedule.cancel("1"), 0)
        self.assertEqual([body for _, body, _ in move(now + timedelta(hours=2))], ["d"])
        self.assertEqual([body for _, body, _ in move(now + timedelta(hours=4))], ["c"])
        self.assertEqual(schedule.reschedule("2", now + timedelta(hours=3)), 0)

    def test_a_message_that_may_be_in_nsqd_is_not_counted_as_taken_back(self):
        for key in ("doubtful", "moved", "sure"):
            schedule.publish_after("orders", key, 0, key=key)

        def fail(error):
            writer = mock.Mock()
            writer.encoder.seal.side_effect = lambda body, *, headers, key: body
            writer.encoder.publish.side_effect = error
            with mock.patch.object(OutboxStore, "writer", return_value=writer):
                Relay(OutboxStore("default")).move_batch()

        fail(NotSent("no nsqd"))
        self.assertEqual(schedule.cancel("sure"), 1)
        fail(OutcomeUnknown("no answer"))
        # A failure afterwards does not end the doubt.
        fail(NotSent("no nsqd"))
        later = timezone.now() + timedelta(days=1)
        with self.assertLogs("gnsqsync.outbox", "WARNING") as logs:
            self.assertEqual(schedule.reschedule("moved", later), 1)
            self.assertEqual(schedule.cancel("doubtful"), 0)
        self.assertIn("1 message with the key moved may come twice", logs.output[0])
        self.assertIn("1 message with the key doubtful, but nsqd may have it", logs.output[1])
        self.assertEqual(OutboxMessage.objects.get().deliver_at, later)

    def test_a_rollback_takes_it_away_and_keeps_what_it_cancelled(self):
        schedule.publish_after("orders", "a", 60, key="kept")
        try:
            with transaction.atomic():
                schedule.cancel("kept")
                schedule.publish_after("orders", "b", 60)
                raise ValueError
        except ValueError:
            pass
        self.assertEqual(OutboxMessage.objects.get().key, "kept")

    def test_wrong_arguments_are_refused_at_once(self):
        past = timezone.now() - timedelta(minutes=1)
        almost_never = datetime.max.replace(tzinfo=UTC) - timezone.now() - timedelta(hours=1)
        for says, function, arguments in (
            ("it must be a datetime", schedule.publish_at, ("t", "x", "tomorrow")),
            ("without a time zone", schedule.publish_at, ("t", "x", datetime.now())),
            ("s ago; what is due now", schedule.publish_at, ("t", "x", past)),
            ("s ago; what is due now", schedule.reschedule, ("k", past)),
            ("delay is -1; it must be seconds", schedule.publish_after, ("t", "x", -1)),
            (
                "after the last day",
                schedule.publish_at,
                ("t", "x", timezone.now().replace(9999, 12, 31)),
            ),
            ("after the year 9999", schedule.publish_after, ("t", "x", almost_never)),
            ("delay is nan", schedule.publish_after, ("t", "x", float("nan"))),
            ("after the year 9999", schedule.publish_after, ("t", "x", 1e12)),
            ("key is ''", schedule.cancel, ("",)),
            ("topic name", schedule.publish_after, ("no good", "x", 5)),
        ):
            self.assertIn(says, wrong(self, function, *arguments), arguments)
        says = wrong(self, schedule.publish_after, "t", "x", 5, key=17)
        self.assertIn("key is 17; it must be a str of 1 to 200", says)
        self.assertEqual(OutboxMessage.objects.count(), 0)

    def test_a_message_without_a_time_is_due_by_any_clock_of_its_writer(self):
        now = timezone.now()
        with mock.patch("gnsqsync.django.outbox.writing.now", return_value=now + timedelta(days=9)):
            outbox.publish("orders", "ahead")
            outbox.publish("orders", "at once", defer=0)
        # A web server of the former version wrote this row.
        OutboxMessage.objects.create(
            topic="orders", body=b"old", retry_at=now + timedelta(days=9), key="k"
        )
        self.assertEqual(outbox.lag().waiting, 3)
        (problem,) = outbox.lag().problems
        self.assertRegex(problem, "7775?99?|777600 s ahead of the clock")
        self.assertEqual([body for _, body, _ in move(now)], ["ahead", "at once", "old"])

    def test_in_a_backlog_messages_with_a_time_have_their_turn(self):
        schedule.publish_after("orders", "due", 1)
        for _ in range(9):
            outbox.publish("orders", "x")
        with (
            captured_messages() as messages,
            mock.patch("gnsqsync.outbox.relay.datetime") as clock,
        ):
            clock.now.return_value = timezone.now() + timedelta(seconds=2)
            relay = Relay(OutboxStore("default"), batch=3)
            relay.move_batch()
            relay.move_batch()
        self.assertEqual([one.body for one in messages], [b"x"] * 3 + [b"due"])

    @override_settings(USE_TZ=False)
    def test_a_project_without_time_zones(self):
        now = datetime.now(UTC)
        schedule.publish_at("orders", "x", now + timedelta(hours=1))
        self.assertEqual(move(now + timedelta(minutes=59)), [])
        self.assertEqual(len(move(now + timedelta(minutes=61))), 1)

    def test_rows_that_a_former_version_wrote_without_time_zones(self):
        with override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin"), with_headers:
            schedule.publish_after("orders", "x", 60)
            schedule.periodic("tick", "0 12 * * *", "ticks", "x")
            with connection.cursor() as cursor:
                # The former version wrote local times.
                table = OutboxMessage._meta.db_table
                cursor.execute(
                    f"UPDATE {table} SET deliver_at = %s, retry_at = %s",
                    ["2030-07-01 12:00:00"] * 2,
                )
                table = PeriodicMessage._meta.db_table
                cursor.execute(f"UPDATE {table} SET next_at = %s", ["2030-07-01 12:00:00"])
            self.assertEqual(move(at("2030-07-01T09:59")), [])
            keys = {key for _, _, key in move(at("2030-07-01T10:00"))}
            self.assertEqual(len(keys), 2)
            self.assertIn("tick@2030-07-01T10:00Z", keys)
            with connection.cursor() as cursor:
                # The former version reads local times.
                cursor.execute(f"SELECT next_at FROM {table}")
                self.assertIn("2030-07-02", str(cursor.fetchone()[0]))

    def test_the_admin(self):
        self.client.force_login(User.objects.create_superuser("root"))
        schedule.publish_after("orders", "x", 60, key="order-7")
        schedule.periodic("nightly", "0 3 * * *", "orders", "café")
        url = "/admin/gnsqsync_outbox/"
        page = self.client.get(f"{url}outboxmessage/", {"state": "scheduled"})
        self.assertContains(page, "order-7")
        page = self.client.get(f"{url}outboxmessage/", {"state": "waiting"})
        self.assertNotContains(page, "order-7")
        pk = OutboxMessage.objects.get().pk
        chosen = {"action": "try_again", "_selected_action": [pk]}
        answer = self.client.post(f"{url}outboxmessage/", chosen, follow=True)
        self.assertContains(answer, "Due now: 0 messages.")
        self.assertContains(self.client.get(f"{url}periodicmessage/"), "0 3 * * *")
        pk = PeriodicMessage.objects.get().pk
        page = self.client.get(f"{url}periodicmessage/{pk}/change/")
        self.assertContains(page, "café")
        self.assertNotContains(page, 'name="_save"')


class Periodic(TestCase):
    def start(self, next_at, **options):
        schedule.periodic("tick", "*/10 * * * *", "ticks", "x", timezone="UTC", **options)
        PeriodicMessage.objects.update(next_at=at(next_at))

    @with_headers
    def test_each_due_time_once(self):
        self.start("2030-01-01T00:10")
        self.assertEqual(move(at("2030-01-01T00:09:59")), [])
        first = ("ticks", "x", "tick@2030-01-01T00:10Z")
        self.assertEqual(move(at("2030-01-01T00:10")), [first])
        # The clock jumps back over it.
        self.assertEqual(move(at("2030-01-01T00:05")), [])
        self.assertEqual(move(at("2030-01-01T00:10:30")), [])
        self.assertEqual(
            move(at("2030-01-01T00:20:01")), [("ticks", "x", "tick@2030-01-01T00:20Z")]
        )

    @with_headers
    def test_the_times_that_no_relay_saw(self):
        self.start("2030-01-01T00:10")
        missed = [key for _, _, key in move(at("2030-01-01T01:05"))]
        self.assertEqual(missed, ["tick@2030-01-01T01:00Z"])
        self.start("2030-01-01T00:10", missed="all")
        missed = [key for _, _, key in move(at("2030-01-01T01:05"), batch=2)]
        times = ("0:10", "0:20", "0:30", "0:40", "0:50", "1:00")
        self.assertEqual(missed, [f"tick@2030-01-01T0{time}Z" for time in times])
        # A fortnight of them: more than one transaction writes.
        self.start("2030-01-01T00:10", missed="all")
        self.assertEqual(len(move(at("2030-01-15T00:10"))), 14 * 144 + 1)

    def test_the_second_process_writes_nothing(self):
        self.start("2030-01-01T00:10")
        now = at("2030-01-01T00:10")
        (row,) = PeriodicMessage.objects.all()
        messages = PeriodicMessages("default")
        self.assertEqual(messages.add_due(now), 1)
        with mock.patch.object(messages, "_rows") as rows:
            # The row as it was read before the other one wrote.
            rows.filter.return_value.values_list.return_value = [(row.pk, row.name)]
            rows.filter.return_value.first.return_value = row
            rows.filter.return_value.update = PeriodicMessage.objects.filter(
                next_at=row.next_at
            ).update
            self.assertEqual(messages.add_due(now), 0)
        self.assertEqual(OutboxMessage.objects.count(), 1)

    def test_a_change_keeps_the_next_time_and_another_cron_text_does_not(self):
        self.start("2030-01-01T00:10")
        schedule.periodic("tick", "*/10 * * * *", "others", "y", timezone="UTC")
        row = PeriodicMessage.objects.get()
        self.assertEqual((row.next_at, row.topic), (at("2030-01-01T00:10"), "others"))
        schedule.periodic("tick", "0 3 * * *", "others", "y", timezone="UTC")
        self.assertLess(PeriodicMessage.objects.get().next_at, at("2030-01-01T00:00"))
        self.assertTrue(schedule.stop_periodic("tick"))
        self.assertFalse(schedule.stop_periodic("tick"))

    @with_headers
    def test_a_next_time_that_a_wrong_clock_has_written_is_moved_back(self):
        self.start("2030-01-01T00:10")
        move(at("2032-06-01T00:00"))
        with self.assertLogs("gnsqsync.outbox", "WARNING") as logs:
            self.assertEqual(move(at("2030-01-01T00:12")), [])
        self.assertIn("'tick' was to come at 2032-06-01 00:10:00+00:00, later than", logs.output[0])
        self.assertEqual(move(at("2030-01-01T00:20")), [("ticks", "x", "tick@2030-01-01T00:20Z")])
        PeriodicMessage.objects.update(next_at=at("2030-01-02T00:00"))
        with mock.patch("gnsqsync.django.outbox.writing.now", return_value=at("2030-01-01T00:21")):
            (problem,) = outbox.lag().problems
        self.assertIn("comes at 2030-01-02 00:00:00+00:00, later than 2030-01-01 00:30", problem)

    @with_headers
    def test_a_message_that_cannot_be_worked_out_does_not_stop_the_others(self):
        self.start("2030-01-01T00:10")
        row = PeriodicMessage.objects.get()
        bad = {
            "zone": {"timezone": "Mars/Olympus"},
            "seconds": {"cron": "0 */10 * * * *"},
            "text": {"cron": "every day"},
            "never": {"cron": "0 0 30 2 *"},
            "missed": {"missed": "no"},
            "all since": {"missed": "all", "next_at": datetime(1970, 1, 1, tzinfo=UTC)},
            "year 1": {"cron": "0 0 L * *", "next_at": datetime(1, 1, 2, tzinfo=UTC)},
        }
        for name, changes in bad.items():
            row.pk, row.name = None, name
            normal = {"cron": "*/10 * * * *", "timezone": "UTC", "missed": "once"}
            for column, value in {**normal, "next_at": at("2030-01-01T00:10"), **changes}.items():
                setattr(row, column, value)
            row.save()
        outbox.publish("orders", "other")
        with self.assertLogs("gnsqsync.outbox", "ERROR") as logs:
            came = move(at("2030-01-01T00:10"))
        self.assertEqual(sorted(body for _, body, _ in came), ["other", "x"])
        self.assertEqual(len(logs.output), len(bad))
        for name in bad:
            self.assertIn(f"periodic message {name!r} cannot be worked out", "".join(logs.output))
        with mock.patch("gnsqsync.django.outbox.writing.now", return_value=at("2030-01-01T00:11")):
            self.assertEqual(len(outbox.lag().problems), len(bad) - 1)

    def test_the_command_fails_where_a_message_cannot_be_worked_out(self):
        schedule.periodic("good", "0 3 * * *", "orders", "x")
        schedule.periodic("due", "0 3 * * *", "orders", "x")
        schedule.periodic("later", "0 3 * * *", "orders", "x")
        PeriodicMessage.objects.filter(name="due").update(
            timezone="Mars/Base", next_at=at("2020-01-01T03:00")
        )
        PeriodicMessage.objects.filter(name="later").update(timezone="Mars/Base")
        bad = "periodic message 'due' cannot be worked out: .*; periodic message 'later' cannot be"
        with captured_messages(), self.assertLogs("gnsqsync.outbox", "ERROR"):
            for _ in range(2):
                with self.assertRaisesRegex(CommandError, bad):
                    call_command("nsq_relay", "--once", verbosity=0)
        PeriodicMessage.objects.update(timezone="UTC")
        with captured_messages() as messages:
            call_command("nsq_relay", "--once", verbosity=0)
        self.assertEqual(len(messages), 1)

    def test_each_due_time_once_while_clocks_are_changed(self):
        for use_tz, zone, change in itertools.product(
            (True, False),
            ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe"),
            (0, 1),
        ):
            change = at(CHANGES[zone][change])
            with (
                self.subTest(use_tz=use_tz, zone=zone, change=change),
                override_settings(USE_TZ=use_tz, TIME_ZONE=zone),
                with_headers,
            ):
                self.assertEqual(
                    self.walk(zone, change - timedelta(hours=2)),
                    [
                        (minute, sorted((f"at {minute}", f"tick@{due:%Y-%m-%dT%H:%M}Z")))
                        for minute in range(10, 241, 10)
                        for due in [change + timedelta(minutes=minute - 120)]
                    ],
                )
                PeriodicMessage.objects.all().delete()

    def walk(self, zone, start):
        """The minute of each look, and the keys of the messages that came then."""
        schedule.periodic("tick", "*/10 * * * *", "ticks", "x", timezone=zone)
        PeriodicMessage.objects.update(next_at=start + timedelta(minutes=10))
        for minute in range(10, 241, 10):
            when = start + timedelta(minutes=minute)
            schedule.publish_at("ticks", "y", when, key=f"at {minute}")
        return [
            (
                minute,
                sorted(key for _, _, key in move(start + timedelta(minutes=minute, seconds=1))),
            )
            for minute in range(10, 241, 10)
        ]

    def test_the_clocks_are_changed(self):
        """As Debian's cron: what falls into the hour that is left out runs after it."""
        schedule.periodic("night", "30 2 * * *", "t", "x", timezone="Europe/Vienna", missed="all")
        PeriodicMessage.objects.update(next_at=at("2030-03-30T01:30"))
        move(at("2030-04-01T00:00"))
        self.assertEqual(PeriodicMessage.objects.get().next_at, at("2030-04-01T00:30"))

    def test_wrong_arguments_are_refused_at_once(self):
        def call(name="n", cron="* * * * *", topic="t", body="x", **options):
            return wrong(self, schedule.periodic, name, cron, topic, body, **options)

        self.assertIn("five fields", call(cron="every day"))
        self.assertIn("five fields", call(cron="61 * * * *"))
        self.assertIn("it must be a str such as", call(cron=5))
        self.assertIn("timezone is 'Vienna'", call(timezone="Vienna"))
        self.assertIn("timezone is ''", call(timezone=""))
        self.assertIn("missed is 'none'; it must be 'once' or 'all'", call(missed="none"))
        self.assertIn("1 to 100", call(name=""))
        self.assertIn("each due time has one", call(headers={"key": "k"}))
        self.assertIn("topic name", call(topic="no good"))
        self.assertIn("six fields; seconds are not possible", call(cron="0 * * * * *"))
        self.assertIn("'@reboot', which is no time", call(cron="@reboot"))
        self.assertIn("200 characters at most", call(cron="0 " * 101))
        self.assertEqual(PeriodicMessage.objects.count(), 0)


class KeysThatWait(TestCase):
    def test_a_second_message_under_a_key_is_told(self):
        schedule.publish_after("t", "x", 60, key="k")
        with self.assertLogs("gnsqsync.django", "WARNING") as logs:
            schedule.publish_after("t", "y", 60, key="k")
        self.assertIn(
            "1 message waits already under the key 'k'; this one comes, too", logs.output[0]
        )
        self.assertEqual(schedule.cancel("k"), 2)
        with self.assertNoLogs("gnsqsync.django", "WARNING"):
            schedule.publish_after("t", "z", 60, key="k")
            schedule.publish_after("t", "z", 60)
