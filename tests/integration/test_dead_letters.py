"""Dead letters are looked at, sent back and purged: functions, and the command as a process."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest

from gnsqsync import Message, NsqdHTTP, Reader, Reject, Writer
from gnsqsync.commands.letter_actions import Terminal
from gnsqsync.commands.letter_actions import run as commanded
from gnsqsync.dead_letters import DeadLetter, DeadLetters, Filter
from gnsqsync.errors import ClosedError, ConfigError, NSQError, PublishError
from tests.integration.conftest import Client, address, url
from tests.integration.test_cli import sentence
from tests.support.commands import Commands
from tests.support.servers import Server, Site, unique
from tests.support.waiting import eventually
from tests.support.world import World


class Dead:
    """The topic ``orders`` of one test, and its dead letters."""

    def __init__(self, nsqd: Server) -> None:
        self.nsqd = nsqd
        self.origin = unique("orders")
        self.topic = f"{self.origin}.dead"
        with NsqdHTTP(url(nsqd)) as http:
            http.create_topic(self.origin)
            http.create_channel(self.origin, "billing")

    def fill(self, count: int, world: World | None = None) -> None:
        """So many messages die; every third one of a timeout."""

        def handle(message: Message) -> None:
            if int(message.headers["number"]) % 3:
                raise Reject("no price")
            raise TimeoutError("payment")

        runtime = world and world.runtime
        where = address(self.nsqd)
        with Writer(where, headers=True, runtime=runtime) as writer:
            for number in range(count):
                headers = {"number": str(number), "key": f"order-{number}"}
                writer.publish(self.origin, b"%d" % number, headers=headers)
        reader = Reader(
            self.origin,
            "billing",
            handle,
            nsqd_tcp_addresses=where,
            headers=True,
            dead_letter_topic=self.topic,
            max_attempts=1,
            max_in_flight=200,
            backoff=False,
            runtime=runtime,
        )
        with reader:
            wait = eventually if world is None else world.eventually
            wait(lambda: reader.stats().gave_up == count, 60)

    def letters(self, world: World | None = None, **options: Any) -> DeadLetters:
        options.setdefault("nsqd_http_addresses", url(self.nsqd))
        return DeadLetters(self.topic, runtime=world and world.runtime, **options)

    def counts(self, topic: str | None = None) -> tuple[int, int]:
        """What waits in the topic and its channels, and what is in flight."""
        with NsqdHTTP(url(self.nsqd)) as http:
            found = http.stats(topic or self.topic).topics
        channels = [channel for each in found for channel in each.channels]
        depth = sum(each.depth for each in found) + sum(each.depth for each in channels)
        return depth, sum(each.in_flight_count for each in channels)

    def bodies(self, topic: str, channel: str) -> set[bytes]:
        """All messages of a channel, which are taken out of it."""
        found = set()
        reader = Reader(
            topic,
            channel,
            nsqd_tcp_addresses=address(self.nsqd),
            max_in_flight=100,
            max_attempts=0,
            headers=True,
        )
        with reader:
            for batch in reader.batches(100, 0.2, 0.05):
                found |= {message.body for message in batch}
                reader.finish(batch)
                if self.counts(topic) == (0, 0):
                    return found
        raise AssertionError("unreachable")


@pytest.fixture
def dead(site: Site) -> Dead:
    return Dead(site.nsqd())


def test_a_look_takes_nothing(dead: Dead, world: World) -> None:
    dead.fill(30, world)
    with dead.letters(world) as letters:
        found = list(letters)
        assert dead.counts() == (0, 30)
        assert (letters.looked_at, letters.waiting, letters.problems) == (30, 30, [])
    assert sorted(int(letter.body) for letter in found) == list(range(30))
    assert {letter.channel for letter in found} == {"billing"}
    assert dead.counts() == (30, 0)
    with dead.letters(world, limit=10) as letters:
        assert len(list(letters)) == 10
    assert dead.counts() == (30, 0)


def test_back_they_are_what_they_were(dead: Dead, world: World, client: Client) -> None:
    dead.fill(3, world)
    with dead.letters(world) as letters:
        tally = letters.requeue_all(Filter(reason="timeout"))
    assert (tally.looked_at, tally.done, tally.failed, tally.error) == (3, 1, 0, None)
    assert dead.counts() == (2, 0)
    got: list[tuple[bytes, dict[str, str]]] = []

    def handle(message: Message) -> None:
        got.append((message.body, dict(message.headers)))
        raise Reject("again")

    reader = client.consume(
        dead.origin,
        handle,
        dead.nsqd,
        channel="billing",
        headers=True,
        dead_letter_topic=dead.topic,
    )
    world.eventually(lambda: reader.stats().gave_up == 1)
    assert got == [(b"0", {"number": "0", "key": "order-0", "deadcount": "1"})]
    with dead.letters(world) as letters:
        deaths = {letter.body: (letter.deaths, letter.reason) for letter in letters}
    assert deaths[b"0"] == (2, "again") and deaths[b"1"] == (1, "no price")


def test_purged_ones_are_gone(dead: Dead, world: World) -> None:
    dead.fill(9, world)
    with dead.letters(world) as letters:
        assert letters.purge_all(Filter(reason="no price")).done == 6
    assert dead.counts() == (3, 0)
    with dead.letters(world) as letters:
        found = list(letters)
        letters.purge(found[0])
        with pytest.raises(ClosedError, match="not held"):
            letters.purge(found[0])
    assert dead.counts() == (2, 0)
    with pytest.raises(ClosedError, match="with"):
        letters.purge(found[1])
    with pytest.raises(ClosedError, match="with"):
        list(letters)


def test_more_than_a_connection_may_hold_are_held(commands: Commands, site: Site) -> None:
    """A connection holds 30 here, as 2,500 usually; and of 60 a third goes."""
    dead = Dead(site.nsqd("-max-rdy-count=30"))
    dead.fill(60)
    with dead.letters(limit=60, patience=0.2) as letters:
        assert len(list(letters)) == 60
        assert dead.counts() == (0, 60)
    assert dead.counts() == (60, 0)
    words = ("--reason", "timeout", "--dry-run", "--limit", "5000")
    result = commands("dead-letters", "requeue", dead.topic, *http(dead), *words)
    assert result.returncode == 0, sentence(result)
    assert len(result.stdout.splitlines()) == 20
    assert dead.counts() == (60, 0) and dead.counts(dead.origin) == (0, 0)
    with dead.letters(limit=5000, patience=0.2) as letters:
        tally = letters.requeue_all(Filter(reason="timeout"))
    assert (tally.looked_at, tally.done) == (60, 20)
    assert dead.counts() == (40, 0)
    assert dead.bodies(dead.origin, "billing") == {b"%d" % n for n in range(0, 60, 3)}


def test_a_publish_that_fails_half_way_loses_nothing(site: Site, dead: Dead) -> None:
    dead.fill(30)
    other = Dead(site.own_nsqd())
    done: list[bytes] = []

    def told(letter: DeadLetter, error: NSQError | None) -> None:
        if error is None:
            done.append(letter.body)
        if len(done) == 10:
            other.nsqd.kill()

    with Writer(address(other.nsqd), publish_timeout=2.0) as writer, dead.letters() as letters:
        tally = letters.requeue_all(writer=writer, told=told)
    assert (tally.done, tally.failed) == (10, 1)
    assert isinstance(tally.error, PublishError)
    assert dead.counts() == (20, 0)
    with dead.letters() as letters:
        left = {letter.body for letter in letters}
    assert left | set(done) == {b"%d" % number for number in range(30)}


def test_a_bad_letter_does_not_end_the_replay(dead: Dead) -> None:
    dead.fill(3)
    with Writer(address(dead.nsqd)) as writer:
        writer.publish(dead.topic, b"bare")
    errors: dict[bytes, str] = {}

    def told(letter: DeadLetter, error: NSQError | None) -> None:
        errors[letter.body] = str(error)

    with dead.letters() as letters:
        tally = letters.requeue_all(told=told)
    assert (tally.done, tally.failed, tally.error) == (3, 1, None)
    assert "which topic it came from" in errors[b"bare"]
    assert dead.counts() == (1, 0)
    with dead.letters() as letters:
        assert letters.requeue_all(to=dead.origin).done == 1
    assert b"bare" in dead.bodies(dead.origin, "billing")


def test_an_nsqd_that_goes_away_loses_nothing(site: Site) -> None:
    """Stopped, not killed: then nsqd itself loses what is in flight, whoever has it."""
    dead = Dead(site.own_nsqd())
    dead.fill(60)
    seen = 0

    def told(letter: DeadLetter, error: NSQError | None) -> None:
        nonlocal seen
        seen += 1
        if seen == 20:
            dead.nsqd.stop()

    with dead.letters() as letters:
        tally = letters.requeue_all(told=told)
        problems = letters.problems
    assert tally.done == 20 and (tally.error is not None or problems)
    dead.nsqd.start()
    found = dead.bodies(dead.origin, "billing") | dead.bodies(dead.topic, "dead_letters")
    assert found == {b"%d" % number for number in range(60)}


def test_a_killed_command_loses_nothing(commands: Commands, site: Site) -> None:
    dead = Dead(site.nsqd("-msg-timeout=1s"))
    dead.fill(60)
    words = ["dead-letters", "requeue", dead.topic, *http(dead), "--rate", "100"]
    with commands.started(*words) as running:
        eventually(lambda: dead.counts(dead.origin)[0] >= 10)
        running.process.kill()
    eventually(lambda: dead.counts()[1] == 0)
    found = dead.bodies(dead.origin, "billing") | dead.bodies(dead.topic, "dead_letters")
    assert found == {b"%d" % number for number in range(60)}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_gives_all_back_at_once(
    commands: Commands, dead: Dead, number: signal.Signals
) -> None:
    dead.fill(60)
    words = ["dead-letters", "requeue", dead.topic, *http(dead), "--rate", "20"]
    with commands.started(*words) as running:
        eventually(lambda: dead.counts(dead.origin)[0] >= 3)
        running.process.send_signal(number)
        ended = running.end()
    err = ended.stderr
    assert ended.returncode == 128 + number
    assert b"stopped by a signal" in err and b"Traceback" not in err
    (went, _), (left, held) = dead.counts(dead.origin), dead.counts()
    assert (went + left, held) == (60, 0)
    assert f"{went} letters requeued".encode() in err


def test_they_are_held_for_longer_than_a_timeout(site: Site, world: World) -> None:
    """As while somebody thinks about the question of purge."""
    dead = Dead(site.nsqd("-msg-timeout=1s"))
    dead.fill(3, world)
    with dead.letters(world) as letters:
        found = list(letters)
        world.sleep(2.5)
        assert dead.counts() == (0, 3)
        letters.purge(found[0])
    assert dead.counts() == (2, 0)


def test_stop_ends_a_rate_at_once(dead: Dead, world: World) -> None:
    dead.fill(3, world)

    def told(letter: DeadLetter, error: NSQError | None) -> None:
        letters.stop()

    with dead.letters(world) as letters:
        # The second one would go in 1,000 seconds.
        assert letters.requeue_all(rate=0.001, told=told).done == 1
    assert letters.is_stopped and dead.counts() == (2, 0)


# -- what cannot be looked at --------------------------------------------------------------------


def problem(dead: Dead, **options: Any) -> str:
    with dead.letters(**options) as letters:
        assert list(letters) == []
        return "; ".join(letters.problems)


def test_the_channel_of_an_older_nsqadmin_is_found(dead: Dead) -> None:
    with NsqdHTTP(url(dead.nsqd)) as nsqd:
        nsqd.create_topic(dead.topic)
        nsqd.create_channel(dead.topic, "send-back")
        nsqd.pub(dead.topic, b"old")
        with dead.letters() as letters:
            assert [letter.body for letter in letters] == [b"old"]
            assert (letters.problems, letters.elsewhere) == ([], {})
        # With both, no copy of a letter goes back twice, and no letter is hidden.
        nsqd.create_channel(dead.topic, "dead_letters")
        with dead.letters() as letters:
            assert list(letters) == []
            assert letters.elsewhere == {"send-back": 1}
            assert "'send-back' of an older nsqadmin, with 1 letter" in letters.problems[0]
        with dead.letters(channel="send-back") as letters:
            assert letters.purge_all().done == 1


def test_places_that_cannot_be_looked_at_are_named(dead: Dead) -> None:
    assert f"no such topic '{dead.topic}'" in problem(dead)
    with NsqdHTTP(url(dead.nsqd)) as nsqd:
        nsqd.create_topic(dead.topic)
        assert problem(dead) == ""
        nsqd.create_channel(dead.topic, "others")
        nsqd.pub(dead.topic, b"x")
        assert re.search(r"no channel 'dead_letters'. .* 'others' \(1\)", problem(dead))
        # Nothing was made, in which letters would pile up.
        assert [c.channel_name for c in nsqd.stats(dead.topic).topics[0].channels] == ["others"]
        nsqd.create_channel(dead.topic, "dead_letters")
        nsqd.pause_channel(dead.topic, "dead_letters")
        nsqd.pub(dead.topic, b"x")
        eventually(lambda: nsqd.stats(dead.topic).topics[0].depth == 0)
        assert "is paused, so nothing comes (1 letter there)" in problem(dead)
        nsqd.unpause_channel(dead.topic, "dead_letters")
        nsqd.empty_channel(dead.topic, "dead_letters")
        assert problem(dead) == ""
        nsqd.pause_topic(dead.topic)
        nsqd.pub(dead.topic, b"x")
        assert "is paused: 1 letter in it" in problem(dead)


def test_an_nsqd_that_is_not_there(dead: Dead) -> None:
    options = {"nsqd_http_addresses": (), "nsqd_tcp_addresses": "127.0.0.1:1"}
    assert "cannot connect to 127.0.0.1:1" in problem(dead, **options)


def test_without_http_it_ends_when_nothing_comes(dead: Dead, world: World) -> None:
    dead.fill(3, world)
    # Its HTTP port is not the next one.
    options = {"nsqd_http_addresses": (), "nsqd_tcp_addresses": address(dead.nsqd)}
    with dead.letters(world, patience=0.5, **options) as letters:
        assert len(list(letters)) == 3
        assert letters.waiting in (None, 3)
    assert dead.counts() == (3, 0)


def test_each_of_two_nsqds_gets_its_own_letters_back(site: Site) -> None:
    first, second = site.nsqds(2)
    one, two = Dead(first), Dead(second)
    two.origin, two.topic = one.origin, one.topic
    with NsqdHTTP(url(second)) as nsqd:
        nsqd.create_topic(one.origin)
        nsqd.create_channel(one.origin, "billing")
    one.fill(4)
    two.fill(6)
    with one.letters(nsqd_http_addresses=[url(first), url(second)]) as letters:
        assert letters.requeue_all().done == 10
        assert letters.waiting == 10
    assert one.counts(one.origin) == (4, 0) and two.counts(one.origin) == (6, 0)


def test_by_nsqlookupd(site: Site) -> None:
    lookupd = site.own_nsqlookupd()
    host, port = lookupd.tcp_address
    dead = Dead(site.own_nsqd(f"-lookupd-tcp-address={host}:{port}"))
    dead.fill(3)
    where = {"nsqd_http_addresses": (), "lookupd_http_addresses": url(lookupd)}

    def look() -> int:
        with dead.letters(**where) as letters:
            return len(list(letters))

    eventually(lambda: look() == 3)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: DeadLetters("a topic"), "topic"),
        (lambda: DeadLetters("t", "c#ephemeral"), "its letters with it"),
        (lambda: DeadLetters("t"), "at least one address"),
        (lambda: DeadLetters("t", nsqd_tcp_addresses="x", limit=0), "limit"),
        (lambda: DeadLetters("t", nsqd_tcp_addresses="x", patience=0), "patience"),
        (lambda: DeadLetters("t", nsqd_tcp_addresses="x", snapy=True), "snappy"),  # type: ignore[call-arg]
    ],
)
def test_bad_input_is_refused_at_once(make: Callable[[], DeadLetters], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()


def test_a_requeue_that_cannot_be_right_is_refused(dead: Dead) -> None:
    dead.fill(1)
    with Writer(address(dead.nsqd), headers=True) as wraps, dead.letters() as letters:
        (letter,) = letters
        with pytest.raises(ConfigError, match="twice"):
            letters.requeue(letter, writer=wraps)
        with pytest.raises(ConfigError, match="is the topic of the dead letters"):
            letters.requeue(letter, to=dead.topic)
        with pytest.raises(ConfigError, match="rate"):
            letters.requeue_all(rate=0)
    assert dead.counts() == (1, 0)


# -- the command ---------------------------------------------------------------------------------


def http(dead: Dead) -> tuple[str, str]:
    return "-H", "{}:{}".format(*dead.nsqd.http_address)


def test_the_command_lists_shows_and_purges(commands: Commands, dead: Dead) -> None:
    dead.fill(3)
    listed = commands("dead-letters", "list", dead.topic, *http(dead), "--json")
    assert listed.returncode == 0, sentence(listed)
    found = {each["body"]: each for each in map(json.loads, listed.stdout.splitlines())}
    assert found["0"]["error"] == "builtins.TimeoutError" and found["0"]["headers"]["number"] == "0"
    assert b"3 letters listed; 3 letters looked at" in listed.stderr
    shown = commands("dead-letters", "show", dead.topic, found["0"]["id"], *http(dead))
    assert shown.returncode == 0, sentence(shown)
    text = shown.stdout.decode()
    assert "reason     TimeoutError: payment" in text and "raise TimeoutError" in text
    assert commands("dead-letters", "show", dead.topic, "nothing", *http(dead)).returncode == 1
    refused = commands("dead-letters", "purge", dead.topic, *http(dead))
    assert refused.returncode == 2 and "give --yes" in sentence(refused)
    assert dead.counts() == (3, 0)
    words = ("--yes", "--id", found["1"]["id"], "--newer-than", "1h", "--from-channel", "billing")
    purged = commands("dead-letters", "purge", dead.topic, *http(dead), *words)
    assert purged.returncode == 0 and b"1 letter purged; 3 letters looked at" in purged.stderr
    assert dead.counts() == (2, 0)
    went = commands("dead-letters", "requeue", dead.topic, *http(dead))
    assert went.returncode == 0 and b"2 letters requeued" in went.stderr
    assert f"all channels of {dead.origin} get them".encode() in went.stderr
    assert dead.counts(dead.origin) == (2, 0)


def test_counted_letters_are_purged_after_the_answer(dead: Dead) -> None:
    dead.fill(3)
    told: list[str] = []
    answer = False

    def confirm(question: str) -> bool:
        told.append(question)
        # Held meanwhile.
        assert dead.counts() == (0, 3)
        return answer

    terminal = Terminal(say=told.append, tell=told.append, confirm=confirm)
    given = {"reason": "no price"}
    assert commanded("purge", dead.letters, given, terminal) == 1
    assert told == [f"Purge 2 letters of 3 in {dead.topic}?", "nothing was changed"]
    assert dead.counts() == (3, 0)
    answer = True
    assert commanded("purge", dead.letters, given, terminal) == 0
    assert dead.counts() == (1, 0)


def test_the_command_says_what_is_wrong(commands: Commands, dead: Dead) -> None:
    result = commands("dead-letters", "list", dead.topic, *http(dead))
    assert result.returncode == 1 and "no such topic" in sentence(result)
    for words in (["--older-than", "x"], ["--limit", "0"], ["--rate", "nan"]):
        result = commands("dead-letters", "requeue", dead.topic, *http(dead), *words)
        assert result.returncode == 2 and f"{words[0]} is" in sentence(result)
