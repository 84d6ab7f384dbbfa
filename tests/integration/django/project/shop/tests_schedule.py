"""Keys and headers of the outbox, and the schedule; run by manage.py test."""

from datetime import UTC, datetime, timedelta
from unittest import mock

from django.contrib.auth.models import User
from django.db import transaction
from django.test import TestCase, override_settings
from django.utils import timezone

from gnsqsync import Middleware
from gnsqsync.django import outbox, schedule
from gnsqsync.django.outbox.models import OutboxMessage, PeriodicMessage
from gnsqsync.django.outbox.relay import OutboxStore
from gnsqsync.django.test import captured_messages
from gnsqsync.errors import ConfigError, NotSent, OutcomeUnknown
from gnsqsync.service.relay import Relay


class Carry(Middleware):
    def publish(self, publication, proceed):
        publication.headers["by"] = "carry"
        return proceed(publication)


ENTRY = {"NSQD": ["127.0.0.1:1"], "OPTIONS": {"headers": True}, "MIDDLEWARE": [Carry()]}
with_headers = override_settings(GNSQSYNC={"default": ENTRY, "other": {"BACKEND": "memory"}})


def move(now=None, **options):
    """What a relay of that time publishes, as (topic, body, key)."""
    relay = Relay(OutboxStore("default"), **options)
    with captured_messages() as messages, mock.patch("gnsqsync.service.relay.datetime") as clock:
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

    def test_what_may_be_in_nsqd_is_not_counted_as_taken_back(self):
        for key in ("doubtful", "moved", "sure"):
            schedule.publish_after("orders", key, 0, key=key)

        def fail(error):
            writer = mock.Mock(_has_headers=False)
            writer._publish.side_effect = writer._publish_many.side_effect = error
            with mock.patch.object(OutboxStore, "writer", return_value=writer):
                Relay(OutboxStore("default")).move_batch()

        fail(NotSent("no nsqd"))
        self.assertEqual(schedule.cancel("sure"), 1)
        fail(OutcomeUnknown("no answer"))
        # What fails afterwards does not end the doubt.
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

    def test_what_is_wrong_is_said_at_once(self):
        past = timezone.now() - timedelta(minutes=1)
        for says, function, arguments in (
            ("it must be a datetime", schedule.publish_at, ("t", "x", "tomorrow")),
            ("without a time zone", schedule.publish_at, ("t", "x", datetime.now())),
            ("s ago; what is due now", schedule.publish_at, ("t", "x", past)),
            ("s ago; what is due now", schedule.reschedule, ("k", past)),
            ("delay is -1; it must be seconds", schedule.publish_after, ("t", "x", -1)),
            ("delay is nan", schedule.publish_after, ("t", "x", float("nan"))),
            ("after the year 9999", schedule.publish_after, ("t", "x", 1e12)),
            ("key is ''", schedule.cancel, ("",)),
            ("topic name", schedule.publish_after, ("no good", "x", 5)),
        ):
            self.assertIn(says, wrong(self, function, *arguments), arguments)
        says = wrong(self, schedule.publish_after, "t", "x", 5, key=17)
        self.assertIn("key is 17; it must be a str of 1 to 200", says)
        self.assertEqual(OutboxMessage.objects.count(), 0)

    @override_settings(USE_TZ=False)
    def test_a_project_without_time_zones(self):
        now = datetime.now(UTC)
        schedule.publish_at("orders", "x", now + timedelta(hours=1))
        self.assertEqual(move(now + timedelta(minutes=59)), [])
        self.assertEqual(len(move(now + timedelta(minutes=61))), 1)

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

    def test_who_comes_second_writes_nothing(self):
        from gnsqsync.django.outbox.periodic import add_due

        self.start("2030-01-01T00:10")
        now = at("2030-01-01T00:10")
        (row,) = PeriodicMessage.objects.all()
        self.assertEqual(add_due("default", now), 1)
        with mock.patch("gnsqsync.django.outbox.periodic.PeriodicMessage") as model:
            found = mock.MagicMock()
            # What it has read before the other one wrote.
            found.__iter__.return_value = iter([row])
            found.update = PeriodicMessage.objects.filter(next_at=row.next_at).update
            model.objects.using.return_value.filter.return_value = found
            self.assertEqual(add_due("default", now), 0)
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

    def test_the_clocks_are_changed(self):
        """As Debian's cron: what falls into the hour that is left out runs after it."""
        schedule.periodic("night", "30 2 * * *", "t", "x", timezone="Europe/Vienna", missed="all")
        PeriodicMessage.objects.update(next_at=at("2030-03-30T01:30"))
        move(at("2030-04-01T00:00"))
        self.assertEqual(PeriodicMessage.objects.get().next_at, at("2030-04-01T00:30"))

    def test_what_is_wrong_is_said_at_once(self):
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
        with mock.patch.dict("sys.modules", cronsim=None):
            self.assertIn("pip install 'gnsqsync[schedule]'", call())
        self.assertEqual(PeriodicMessage.objects.count(), 0)
