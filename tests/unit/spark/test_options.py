"""Options of the Spark source as users write them, and the one sentence that answers a mistake."""

from __future__ import annotations

import pickle

import pytest

from gnsqsync.errors import ConfigError
from gnsqsync.spark.options import Given, SourceOptions
from gnsqsync.spark.sink_options import SinkOptions

ENOUGH = {
    "subscribe": "orders",
    "channel": "spark",
    "lookupdHttpAddresses": "127.0.0.1:4161",
    "walPath": "/tmp/wal",
}


def parse(streaming: bool | None = True, **options: str | None) -> SourceOptions:
    """ENOUGH with these options; __ stands for a dot, None takes one away."""
    whole = {**ENOUGH, **{name.replace("__", "."): value for name, value in options.items()}}
    given = {name: value for name, value in whole.items() if value is not None}
    return SourceOptions.parse(given, streaming=streaming)


def test_the_defaults() -> None:
    options = parse()
    assert options.topics == ("orders",)
    assert options.max_messages is None
    assert (options.max_in_flight, options.segment_bytes) == (2500, 16 << 20)
    assert (options.poll_timeout, options.poll_interval) == (1, 0.2)
    assert (options.msg_timeout, options.retention) == (15, 60)
    assert options.deduplicate and options.fail_on_data_loss


def test_names_are_read_in_any_case() -> None:
    lower = {name.lower(): value for name, value in ENOUGH.items()}
    assert SourceOptions.parse(lower, streaming=True) == parse()


def test_lists_and_aliases() -> None:
    options = parse(subscribe=None, topic="a, b,,a", maxOffsetsPerTrigger="7")
    assert options.topics == ("a", "b")
    assert options.max_messages == 7


def test_units() -> None:
    options = parse(maxTriggerDelay="90s", msgTimeoutMs="40000", pollTimeoutMs="1500")
    assert options.max_trigger_delay == 90
    assert options.msg_timeout == 40
    # By itself at least twice as long as nsqd may hold back a message.
    assert options.retention == 80
    assert options.poll_timeout == 1.5


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("15m", 900), ("2 min", 120), ("1.5h", 5400), ("1d", 86400)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse(maxTriggerDelay=text).max_trigger_delay == seconds


def test_the_http_address_of_an_nsqd() -> None:
    def nsqds(**options: str) -> tuple[tuple[str, str], ...]:
        return parse(lookupdHttpAddresses=None, **options).nsqds

    assert nsqds(nsqdTcpAddresses="a,b:5150,[::1]") == (
        ("a:4150", "a:4151"),
        ("b:5150", "b:5151"),
        ("[::1]:4150", "[::1]:4151"),
    )
    assert nsqds(nsqdTcpAddresses="a,b", nsqdHttpAddresses="x:1,https://y:2") == (
        ("a:4150", "x:1"),
        ("b:4150", "https://y:2"),
    )
    assert nsqds(nsqdHttpAddresses="x:1") == (("", "x:1"),)
    assert nsqds(nsqdTcpAddresses="unix:///run/nsqd", nsqdHttpAddresses="x:1") == (
        ("unix:///run/nsqd", "x:1"),
    )


def test_options_of_the_client_have_its_types() -> None:
    options = parse(
        nsq__tls="true",
        nsq__tls_verify="False",
        nsq__auth_secret="s3cret",
        nsq__deflate="true",
        nsq__deflate_level="3",
        nsq__connect_timeout="2.5",
        nsq__output_buffer_timeout="-1",
        nsq__address_map='{"a:4150": "b:4150"}',
    )
    assert options.connection == {
        "tls": True,
        "tls_verify": False,
        "auth_secret": "s3cret",
        "deflate": True,
        "deflate_level": 3,
        "connect_timeout": 2.5,
        "output_buffer_timeout": -1.0,
        "address_map": {"a:4150": "b:4150"},
    }
    assert options.http_options() == {"tls_verify": False}
    assert "s3cret" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


# What is wrong, and a part of the sentence that tells what to set.
MISTAKES = [
    ({"subscribe": None}, "'subscribe' is missing: set it to the topic"),
    ({"subscribe": "a b"}, "topic name 'a b' is not valid"),
    ({"topic": "other"}, "'subscribe' and 'topic' mean the same"),
    ({"channel": None}, "'channel' is missing: set it to a channel that no other"),
    ({"channel": "c#ephemeral"}, "ephemeral channel vanishes between batches"),
    ({"lookupdHttpAddresses": None}, "'lookupdHttpAddresses' is missing"),
    ({"lookupdHttpAddresses": "ftp://x"}, "write http://host:port"),
    ({"nsqdTcpAddresses": "x"}, "set one of them"),
    ({"walPath": None}, "'walPath' is missing: set it to a folder that the driver and all"),
    ({"walPath": "some/folder"}, "not absolute"),
    ({"walPath": "hdfs://x/y"}, "hdfs: has no exclusive create"),
    ({"walOptions": "{"}, "'walOptions' is not JSON"),
    ({"walOptions": "[1]"}, "must be a JSON object"),
    ({"walRetentionMs": "20000"}, "at least twice 'msgTimeoutMs' (15000)"),
    ({"startingOffsets": "latest"}, "NSQ has no offsets"),
    ({"endingTimestamp": "1"}, "NSQ has no offsets"),
    ({"assign": '{"a": [0]}'}, "NSQ has no partitions"),
    ({"subscribePattern": "a.*"}, "list the topics with 'subscribe'"),
    ({"includeHeaders": "true"}, "put them into the body"),
    ({"kafka.bootstrap.servers": "x"}, "set 'nsqdTcpAddresses' or 'lookupdHttpAddresses'"),
    ({"kafka.group.id": "x"}, "set 'channel'"),
    ({"path": "/x"}, "NSQ has no path"),
    (
        {"maxMessagePerTrigger": "1"},
        "no option 'maxMessagePerTrigger'; did you mean 'maxMessagesPerTrigger'?",
    ),
    ({"nsq.auth_secrt": "1"}, "did you mean 'nsq.auth_secret'?"),
    ({"nsq.sample_rate": "5"}, "sample the DataFrame"),
    ({"nsq.msg_timeout": "5"}, "set 'msgTimeoutMs'"),
    ({"nsq.tls": "maybe"}, "must be true or false"),
    ({"nsq.deflate_level": "high"}, "must be a whole number"),
    ({"nsq.connect_timeout": "soon"}, "must be a number of seconds"),
    ({"nsq.tls_ca_file": "/no/such/file"}, "tls_ca_file '/no/such/file' is not a file"),
    ({"nsq.snappy": "true", "nsq.deflate": "true"}, "nsqd allows one of them"),
    ({"maxMessagesPerTrigger": "0"}, "allowed is 1 or more"),
    ({"maxMessagesPerTrigger": "5", "minMessagesPerTrigger": "6"}, "above 'maxMessagesPerTrigger'"),
    ({"maxTriggerDelay": "15"}, "write a time like 30s, 15m or 1h"),
    ({"deduplicate": "perhaps"}, "must be true or false"),
    ({"msgTimeoutMs": "1000000", "walRetentionMs": "2000000"}, "msg_timeout is 1000.0 seconds"),
    ({"drainId": "x"}, "'drainId' is for spark.read"),
    ({"peek": "true"}, "'peek' is for spark.read"),
]


@pytest.mark.parametrize(("options", "sentence"), MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_is_answered_in_one_sentence(
    options: dict[str, str | None], sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(**{name.replace(".", "__"): value for name, value in options.items()})
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"walPath": None}, "or 'peek' to true to look without consuming"),
        ({"peek": "true"}, "takes nothing from the channel"),
        ({"peek": "true", "walPath": None, "drainId": "x"}, "takes nothing from the channel"),
        ({"drainId": "../x"}, "it names a folder"),
    ],
)
def test_mistakes_of_a_batch_read(options: dict[str, str | None], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(streaming=False, **options)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_that_a_batch_read_may_have() -> None:
    assert parse(streaming=False, drainId="2026-11-21").drain_id == "2026-11-21"
    assert parse(streaming=False, walPath=None, peek="true").peek
    # Not known yet at load(): both forms pass.
    assert parse(streaming=None, drainId="x").drain_id == "x"
    assert parse(streaming=None, walPath=None, peek="true").peek


def test_names_are_told_as_they_were_typed() -> None:
    for name, told in (
        ("nsqdTcpAddress", "has no option 'nsqdTcpAddress'; did you mean 'nsqdTcpAddresses'?"),
        ("KAFKA.Group.ID", "option 'KAFKA.Group.ID' is Kafka's"),
        ("nsq.Auth_Secrt", "has no option 'nsq.Auth_Secrt'"),
        ("startingoffsets", "option 'startingOffsets' is not possible"),
    ):
        with pytest.raises(ConfigError) as caught:
            SourceOptions.parse({**ENOUGH, name: "x"}, streaming=True)
        assert told in str(caught.value)
        assert "lower case" not in str(caught.value)


def test_an_option_that_spark_put_into_lower_case_is_named() -> None:
    lower = {name.lower(): value for name, value in ENOUGH.items()}
    with pytest.raises(ConfigError) as caught:
        SourceOptions.parse({**lower, "nsqdtcpaddress": "x"}, streaming=True)
    assert str(caught.value) == (
        "the NSQ source has no option 'nsqdtcpaddress' (Spark passes names on in lower case); did"
        " you mean 'nsqdTcpAddresses'?"
    )


def test_a_table_is_refused() -> None:
    # As Spark 4.3 passes them: at CREATE TABLE, and in a query of a table that has columns.
    for options in ({"provider": "nsq", "subscribe": "t", "option.subscribe": "t"}, {}):
        with pytest.raises(ConfigError, match="write CREATE TEMPORARY VIEW name USING nsq"):
            SourceOptions.parse(options, streaming=None)
        with pytest.raises(ConfigError, match="write CREATE TEMPORARY VIEW name USING nsq"):
            SinkOptions.parse(options)


def test_options_of_spark_itself_can_pass() -> None:
    given = Given({"checkpointlocation": "/x", "Topic": "t"}, "sink", also=["checkpointLocation"])
    assert given.take("topic") == "t"
    given.finish()
