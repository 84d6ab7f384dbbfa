"""NSQ(app) in this process: config, two applications, publishing, capturing, contexts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from flask import Flask, current_app, g
from sqlalchemy import MetaData

from gnsqsync import Message, NsqdHTTP
from gnsqsync.contrib.sqlalchemy import Inbox
from gnsqsync.errors import ConfigError, NotSent, Refused
from gnsqsync.flask import NSQ
from gnsqsync.flask.config import KEYS, read_settings
from gnsqsync.testing.memory import MemoryWriter
from tests.integration.conftest import address, url
from tests.support.servers import Server, unique


def application(name: str = "shop", **config: Any) -> Flask:
    app = Flask(name)
    app.config.update(config)
    return app


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"NSQ_NSQD_ADRESSES": []}, "'NSQ_NSQD_ADRESSES'; did you mean 'NSQ_NSQD_ADDRESSES'"),
        ({"NSQ_MAX_ATTEMPTS": 3}, "put it into NSQ_OPTIONS = {'max_attempts': ...}"),
        ({"NSQ_QQQ": 3}, "known are NSQ_NSQD_ADDRESSES, "),
        ({"NSQ_NSQD_ADDRESSES": 4150}, "NSQ_NSQD_ADDRESSES is of type int; give a list"),
        ({"NSQ_NSQD_ADDRESSES": ["a:b"]}, "a:b"),
        ({"NSQ_BACKEND": "redis"}, "NSQ_BACKEND is 'redis'"),
        ({"NSQ_PUBLISH_TIMEOUT": -1}, "publish_timeout"),
        ({"NSQ_OPTIONS": ["tls"]}, "NSQ_OPTIONS is a list"),
        ({"NSQ_OPTIONS": {"max_atempts": 1}}, "did you mean 'max_attempts'"),
        ({"NSQ_OPTIONS": {"max_tries": 1}}, "did you mean 'max_attempts'"),
        ({"NSQ_OPTIONS": {"message_handler": 1}}, "its place is @nsq.handler"),
        ({"NSQ_TLS_V1": True}, "put it into NSQ_OPTIONS = {'tls': ...}"),
        ({"NSQ_LOOKUPD": "a"}, "its place is NSQ_LOOKUPD_ADDRESSES"),
        ({"NSQ_OBSERVER": 3}, "NSQ_OBSERVER is 3; it must be a function"),
        ({"NSQ_OPTIONS": {"topic": "t"}}, "its place is @nsq.handler"),
        ({"NSQ_OPTIONS": {"max_attempts": -1}}, "max_attempts"),
        ({"NSQ_OPTIONS": {"outage": "no"}}, "outage is 'no'; it must be 'fail' or 'wait'"),
        ({"NSQ_OUTAGE": "wait"}, "put it into NSQ_OPTIONS = {'outage': ...}"),
    ],
)
def test_a_wrong_config_is_named(config: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NSQ(application(**config))
    assert text in str(caught.value)


def test_addresses_and_options_go_where_they_belong() -> None:
    app = application(
        NSQ_NSQD_ADDRESSES="a:1, b:2",
        NSQ_LOOKUPD_ADDRESSES=["c:3"],
        NSQ_PUBLISH_TIMEOUT=2.5,
        NSQ_OPTIONS={"max_attempts": 9, "tls": True},
    )
    settings = read_settings(app)
    assert settings.writer_keywords() == {
        "nsqd_tcp_addresses": ("a:1", "b:2"),
        "publish_timeout": 2.5,
        "tls": True,
    }
    assert settings.reader_keywords() == {
        "lookupd_http_addresses": ("c:3",),
        "max_attempts": 9,
        "tls": True,
    }
    local = read_settings(application())
    assert local.writer_keywords() == {"nsqd_tcp_addresses": "127.0.0.1:4150"}
    assert local.reader_keywords() == local.writer_keywords()


def test_where_given_up_messages_go_may_be_said_in_the_other_place() -> None:
    nsq = NSQ()
    nsq.handler("t", "c", name="often", max_deliveries=50)(print)
    nsq.handler("t", "d", name="dead", dead_letter_topic="dead")(print)
    often, dead = nsq.handlers["often"], nsq.handlers["dead"]
    plain, options = application(), {"max_deliveries": 50}
    nsq.init_app(plain)
    assert dead.reader(plain)
    with pytest.raises(ConfigError, match="needs dead_letter_topic or on_giving_up"):
        often.reader(plain)
    strict = application(NSQ_OPTIONS=options)
    nsq.init_app(strict)
    assert dead.reader(strict)
    with pytest.raises(ConfigError, match="needs dead_letter_topic or on_giving_up"):
        often.reader(strict)


def test_a_second_handler_of_a_channel_is_refused_at_its_registration() -> None:
    nsq = NSQ()

    def mail(message: Message) -> None: ...

    def store(message: Message) -> None: ...

    nsq.handler("paid", "mail")(mail)
    with pytest.raises(ConfigError, match=r"mail and .*store both consume paid/mail"):
        nsq.handler("paid", "mail")(store)
    with pytest.raises(ConfigError, match="registered for paid/mail and for made/mail under one"):
        nsq.handler("made", "mail")(mail)
    assert [*nsq.handlers] == ["mail"]
    nsq.handler("paid", "mail", shared=True)(mail)
    nsq.handler("paid", "mail", shared=True)(store)
    NSQ.init_app(nsq, application())


def test_once_without_headers_is_refused_by_init_app() -> None:
    inbox = Inbox(MetaData())

    def work(message: Message, session: Any) -> None: ...

    nsq = NSQ()
    nsq.handler("paid", "books", name="books")(inbox.once(lambda: None)(work))
    with pytest.raises(ConfigError, match=r"work handles a message once by its header 'key'"):
        nsq.init_app(application())
    nsq.init_app(application(NSQ_OPTIONS={"headers": True}))
    own = NSQ()
    own.handler("paid", "books")(inbox.once(lambda: None, key=lambda message: "a")(work))
    own.init_app(application())


def test_init_app_connects_nothing_and_fills_the_config() -> None:
    threads = threading.active_count()
    app = application()
    nsq = NSQ(app)
    assert threading.active_count() == threads
    assert app.config.items() >= KEYS.items()
    assert app.extensions["gnsqsync"].writers == {}
    assert app.make_shell_context()["nsq"] is nsq
    with pytest.raises(RuntimeError, match="has an NSQ already"):
        nsq.init_app(app)


def test_an_application_that_is_not_set_up() -> None:
    nsq = NSQ()
    with application().app_context(), pytest.raises(RuntimeError, match=r"nsq\.init_app\(app\)"):
        nsq.publish("topic", b"x")
    with pytest.raises(RuntimeError, match="application context"):
        nsq.publish("topic", b"x")


@pytest.fixture
def two(nsqd: Server) -> Iterator[tuple[NSQ, Flask, Flask]]:
    """One extension object, two applications; the second one's limit is lower."""
    nsq = NSQ()
    apps = []
    for name, options in (("one", {}), ("two", {"max_msg_size": 3})):
        apps.append(application(name, NSQ_NSQD_ADDRESSES=[address(nsqd)], NSQ_OPTIONS={**options}))
        nsq.init_app(apps[-1])
    yield nsq, apps[0], apps[1]
    for app in apps:
        for writer in app.extensions["gnsqsync"].writers.values():
            writer.close()


def test_two_applications_have_a_writer_each(two: tuple[NSQ, Flask, Flask], nsqd: Server) -> None:
    nsq, one, other = two
    topic = unique("flask")
    with one.app_context():
        writer = nsq.writer
        nsq.publish(topic, "long enough")
        nsq.publish_many(topic, [b"a", b"b"])
    with other.app_context():
        assert nsq.writer is not writer
        with pytest.raises((ConfigError, Refused)):
            nsq.publish(topic, "long enough")
        nsq.publish(topic, "abc", defer=0.01)
    with one.app_context():
        assert nsq.writer is writer
    with NsqdHTTP(url(nsqd)) as http:
        (found,) = http.stats(topic).topics
    assert found.message_count == 4


def test_under_testing_nothing_leaves_the_process() -> None:
    # Nobody listens there.
    app = application(NSQ_NSQD_ADDRESSES=["127.0.0.1:1"])
    nsq = NSQ(app)

    @app.post("/orders")
    def take_order() -> str:
        nsq.publish("orders", '{"number": 1}', defer=5)
        return "taken"

    app.config["TESTING"] = True
    with nsq.captured_messages(app) as messages:
        assert app.test_client().post("/orders").status_code == 200
    (order,) = messages
    assert (order.topic, order.json(), order.defer) == ("orders", {"number": 1}, 5)
    with app.app_context():
        assert isinstance(nsq.writer, MemoryWriter)
        # What was captured is not there once more.
        assert nsq.writer.messages == []
        nsq.publish("orders", b"x")
        with pytest.raises(ConfigError):
            nsq.publish("no topic", b"x")
        assert [message.body for message in nsq.writer.messages] == [b"x"]


def test_a_writer_that_is_kept_from_before_the_tests() -> None:
    app = application(NSQ_NSQD_ADDRESSES=["127.0.0.1:1"])
    nsq = NSQ(app)
    with app.app_context():
        kept = nsq.writer
    with pytest.raises(AttributeError, match="what it publishes leaves the process"):
        kept.messages  # type: ignore[attr-defined]
    app.config["TESTING"] = True
    kept.publish("t", b"1")
    with nsq.captured_messages(app) as messages:
        kept.publish("t", b"2")
    assert [message.body for message in messages] == [b"2"]
    with app.app_context():
        assert [message.body for message in nsq.writer.messages] == [b"1"]  # type: ignore[attr-defined]
        assert kept.stats() == nsq.writer.stats()
    app.config["TESTING"] = False
    with pytest.raises(NotSent):
        kept.publish("t", b"3", timeout=0.2)
    kept.close()


def test_a_publish_in_an_event_loop_warns_at_the_line_of_the_call() -> None:
    async def view(nsq: NSQ) -> None:
        nsq.writer.publish("t", b"1", timeout=0.1)

    app = application(NSQ_NSQD_ADDRESSES=["127.0.0.1:1"])
    nsq = NSQ(app)
    with app.app_context(), pytest.warns(RuntimeWarning, match="blocks the event") as told:
        with pytest.raises(NotSent):
            asyncio.run(view(nsq))
        nsq.writer.close()
    assert [warning.filename for warning in told] == [__file__]


def test_the_backend_says_more_than_testing() -> None:
    nsq = NSQ()
    for testing, backend, captured in (
        (True, "nsq", False),
        (False, "memory", True),
        (False, None, False),
    ):
        app = application(TESTING=testing, NSQ_BACKEND=backend)
        nsq.init_app(app)
        with app.app_context():
            assert isinstance(nsq.writer, MemoryWriter) == captured
            with nsq.captured_messages() as messages:
                nsq.publish("t", b"x")
            assert len(messages) == 1


# -- handlers ------------------------------------------------------------------------------------


def test_handlers_are_checked_where_they_are_written() -> None:
    nsq = NSQ()

    @nsq.handler("t", "c", concurrency=2)
    def handle(message: Message) -> None: ...

    async def later(message: Message) -> None: ...

    def lazily(message: Message) -> Iterator[None]:
        yield

    def takes_two(message, app):  # type: ignore[no-untyped-def]
        pass

    handler = nsq.handlers["handle"]
    assert (handler.topic, handler.channel, handler.function) == ("t", "c", handle)
    nsq.handler("t", "c")(handle)
    for decorate, text in (
        (lambda: nsq.handler("t", "c", name="handle")(lambda message: None), "give one of them"),
        (lambda: nsq.handler("t", "c")(later), r"\.later is a coroutine function"),
        (lambda: nsq.handler("t", "c")(partial(later)), "the handler of t/c is a coroutine"),
        (lambda: nsq.handler("t", "c")(lazily), r"\.lazily is a generator function"),
        (
            lambda: nsq.handler("t", "c")(takes_two),
            r"takes_two\(message, app\): missing .* 'app'; ",
        ),
        (lambda: nsq.handler("t", "c")(lambda: None), "must be a callable that takes a message"),
        (lambda: nsq.handler("no topic", "c")(handle), "no topic"),
        (lambda: nsq.handler("t", "c", concurrency=0)(handle), "concurrency"),
        (lambda: nsq.handler("t", "c", nsqd_tcp_addresses="a")(handle), "in the config"),
    ):
        with pytest.raises(ConfigError, match=text):
            decorate()


def test_each_message_has_a_context_of_its_own(two: tuple[NSQ, Flask, Flask], nsqd: Server) -> None:
    nsq, one, other = two
    topic, done = unique("flask"), threading.Event()
    seen: list[tuple[str, bool, int]] = []
    torn_down: list[str] = []
    other.teardown_appcontext(lambda error: torn_down.append(str(error)))

    @nsq.handler(topic, "c", max_attempts=2, requeue_delay=0, max_backoff_duration=0)
    def handle(message: Message) -> None:
        seen.append((current_app.name, hasattr(g, "number"), message.attempts))
        g.number = message.attempts
        if message.attempts == 1:
            raise ValueError("the first time")
        done.set()

    with one.app_context():
        nsq.publish(topic, b"x")
    reader = nsq.handlers["handle"].reader(other, concurrency=None, max_in_flight=3)
    reader.start(block=False)
    assert reader.stats().max_in_flight == 3
    assert done.wait(30)
    reader.stop()
    reader.join()
    assert seen == [("two", False, 1), ("two", False, 2)]
    assert torn_down == ["the first time", "None"]
