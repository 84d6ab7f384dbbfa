"""Standard input and output that are closed, left or full: what each command makes of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gnsqsync import NsqdHTTP
from tests.integration.conftest import address, url
from tests.integration.test_stop_of_commands import DJANGO, FLASK, JOBS
from tests.support.servers import Pool, Server, unique
from tests.support.texts import ROOT

CLI = ("-m", "gnsqsync.cli")
MANAGE = ("manage.py",)
NSQ = ("-m", "flask", "--app", "site_", "nsq")


class Commands:
    """Runs commands in a folder with an application, beside a topic of its own."""

    def __init__(self, folder: Path, nsqd: Server) -> None:
        self.topic = unique("output")
        self.nsqd = nsqd
        self.folder = folder
        for path, text in {"jobs.py": JOBS, "site_.py": FLASK, **DJANGO}.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        with open(folder / "settings.py", "a") as settings:
            settings.write(f"GNSQSYNC['default']['NSQD_HTTP'] = [{url(nsqd)!r}]\n")
        with open(folder / "site_.py", "a") as site:
            site.write(f"app.config['NSQ_NSQD_HTTP_ADDRESSES'] = [{url(nsqd)!r}]\n")

    def __call__(
        self,
        *words: str,
        redirected: str = "",
        stdout: int | None = None,
        stdin: bytes = b"",
        program: tuple[str, ...] = (sys.executable,),
    ) -> tuple[int, str]:
        """Exit code and stderr; ``redirected`` as the shell writes it."""
        ended = subprocess.run(
            ["sh", "-c", f'exec "$@" {redirected}', "sh", *program, "-W", "error", *words],
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "ADDRESS": address(self.nsqd),
                "TOPIC": self.topic,
            },
            input=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            timeout=120,
        )
        return ended.returncode, ended.stderr.decode()

    def without_reader(self, *words: str, stdin: bytes = b"") -> tuple[int, str]:
        """As in ``command | true``, when ``true`` has ended."""
        reader, writer = os.pipe()
        os.close(reader)
        try:
            return self(*words, stdout=writer, stdin=stdin)
        finally:
            os.close(writer)

    def without_any_reader(self, *words: str) -> int:
        """The exit code where standard output and error are pipes that nobody reads."""
        reader, writer = os.pipe()
        os.close(reader)
        try:
            return self(*words, redirected="2>&1", stdout=writer)[0]
        finally:
            os.close(writer)

    def waiting(self) -> tuple[int, int]:
        """Return the numbers of waiting or deferred messages, and of finished ones."""
        with NsqdHTTP(url(self.nsqd)) as http:
            (channel,) = http.stats(self.topic).topics[0].channels
        left = channel.depth + channel.deferred_count + channel.in_flight_count
        return left, channel.message_count - left

    def published(self) -> int:
        with NsqdHTTP(url(self.nsqd)) as http:
            return sum(topic.message_count for topic in http.stats(self.topic).topics)


@pytest.fixture
def commands(tmp_path: Path, server_pool: Pool) -> Commands:
    return Commands(tmp_path, server_pool.get("embedded", "nsqd", (), ""))


@pytest.mark.parametrize(
    "words",
    [
        (*MANAGE, "nsq_stat"),
        (*MANAGE, "nsq_stat", "--json"),
        (*MANAGE, "nsq_consume", "--list"),
        (*MANAGE, "nsq_publish", "output", "one"),
        (*NSQ, "stat"),
        (*NSQ, "consume", "--list"),
        (*NSQ, "publish", "output", "one"),
    ],
    ids=" ".join,
)
def test_a_reader_that_left_is_no_error(commands: Commands, words: tuple[str, ...]) -> None:
    assert commands.without_reader(*words) == (0, "")


@pytest.mark.parametrize(
    "words", [("--help",), ("--version",), ("pub", "--help"), ("stat", "--once")], ids=" ".join
)
def test_the_command_line_without_a_reader(commands: Commands, words: tuple[str, ...]) -> None:
    if words[0] == "stat":
        words += ("-H", url(commands.nsqd))
        with NsqdHTTP(url(commands.nsqd)) as http:
            http.create_topic(commands.topic)  # there is something to show
    assert commands.without_reader(*CLI, *words) == (0, "")


@pytest.mark.parametrize("json", [(), ("--json",)], ids=["plain", "json"])
def test_pub_without_a_reader_says_by_its_code_what_nsqd_did(
    commands: Commands, json: tuple[str, ...]
) -> None:
    words = (*CLI, "pub", commands.topic, *json, "-t")
    assert commands.without_reader(*words, address(commands.nsqd), stdin=b"a\nb\n") == (0, "")
    assert commands.published() == 2
    code, complaint = commands.without_reader(*words, "127.0.0.1:1", "--timeout=1", stdin=b"a")
    assert code == 1
    assert "Traceback" not in complaint
    assert complaint.splitlines()[-1].startswith("gnsqsync: no nsqd could be reached")


def test_consume_without_a_reader_keeps_its_exit_code(commands: Commands) -> None:
    """0 by a signal: the handler sends it."""
    (commands.folder / "ending.py").write_text(
        "import os, signal\ndef end(message):\n    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    with NsqdHTTP(url(commands.nsqd)) as http:
        http.pub(commands.topic, b"one")
    words = ("consume", commands.topic, "c", "ending:end", "-t", address(commands.nsqd))
    code, said = commands.without_reader(*CLI, *words, "--json")
    assert (code, "Traceback" in said) == (0, False), said


PRINTING = """
import os, signal

def work(message):
    if message.body == b"print":
        os.kill({pid}, signal.SIGTERM)
        print("{long}", flush=True)
    elif not message.body.startswith(b"quiet"):
        os.kill({pid}, signal.SIGTERM)
"""


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    "words",
    [
        (*CLI, "consume", "TOPIC", "c", "jobs:work", "-t", "NSQD"),
        (*MANAGE, "nsq_consume"),
        (*NSQ, "consume"),
    ],
    ids=["cli", "django", "flask"],
)
def test_a_consumer_goes_on_where_nobody_reads_its_lines(
    commands: Commands, words: tuple[str, ...], processes: int
) -> None:
    """A consumer handles messages; one that its handler cannot print is not finished."""
    pid = "os.getpid()" if processes == 1 else "os.getppid()"
    (commands.folder / "jobs.py").write_text(PRINTING.format(pid=pid, long="x" * 10_000))
    with NsqdHTTP(url(commands.nsqd)) as http:
        http.create_topic(commands.topic)
        http.create_channel(commands.topic, "c")
        http.mpub(commands.topic, [b"quiet 1", b"quiet 2", b"print"])
    places = {"TOPIC": commands.topic, "NSQD": address(commands.nsqd)}
    code = commands.without_any_reader(
        *(places.get(word, word) for word in words), f"--processes={processes}"
    )
    assert code == 0
    assert commands.waiting() == (1, 2)


@pytest.mark.parametrize(
    ("words", "code"),
    [((*CLI, "pub"), 2), ((*MANAGE, "nsq_publish"), 1), ((*NSQ, "publish"), 1)],
    ids=["cli", "django", "flask"],
)
def test_closed_input_and_output_of_what_publishes(
    commands: Commands, words: tuple[str, ...], code: int
) -> None:
    words += (commands.topic,)
    if words[:2] == CLI:
        (commands.folder / "bodies").write_text("one\n")
        given = ("bodies", "-t", address(commands.nsqd))
    else:
        given = ("one",)
    ended, said = commands(*words, redirected="<&-")
    assert ended == code
    assert "standard input is closed" in said
    assert "Traceback" not in said
    assert commands(*words, *given, redirected=">&-") == (0, "")
    assert commands.published() == 1


ENDING = """
import os, signal

def end(message):
    # This process, or the one that started it.
    os.kill(os.getppid() if "{}" else os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("words", "redirected", "code"),
    [
        ((*CLI, "pub", "TOPIC", "bodies", "-t", "NSQD"), "2>&-", 0),
        ((*CLI, "stat", "--once", "-H", "HTTP"), ">&-", 0),
        ((*CLI, "stat", "--once", "--json", "-H", "HTTP"), ">&-", 0),
        ((*CLI, "consume", "TOPIC", "c", "ending:end", "--processes=2", "-t", "NSQD"), ">&-", 0),
        ((*CLI, "nsqd", "--version"), ">&-", 0),
        ((*CLI, "nsqd", "--no-such-flag"), "2>&-", 2),
        (("-m", "gnsqsync.embedded", "nsqd", "--version"), ">&-", 0),
        (("-m", "gnsqsync.embedded", "nsqd", "--no-such-flag"), "2>&-", 2),
        ((*MANAGE, "nsq_stat"), ">&-", 0),
        ((*MANAGE, "nsq_consume", "--list"), ">&-", 0),
        ((*MANAGE, "nsq_consume"), ">&-", 0),
        ((*MANAGE, "nsq_consume", "--processes=2"), ">&- 2>&-", 0),
        ((*NSQ, "consume", "--processes=2"), ">&-", 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_closed_output_does_not_change_the_exit_code(
    commands: Commands, words: tuple[str, ...], redirected: str, code: int
) -> None:
    places = {"TOPIC": commands.topic, "NSQD": address(commands.nsqd), "HTTP": url(commands.nsqd)}
    (commands.folder / "bodies").write_text("one\n")
    several = "yes" if "--processes=2" in words else ""
    (commands.folder / "ending.py").write_text(ENDING.format(several))
    (commands.folder / "jobs.py").write_text("from ending import end as work\n")
    with NsqdHTTP(url(commands.nsqd)) as http:
        http.pub(commands.topic, b"one")
    ended, said = commands(*(places.get(word, word) for word in words), redirected=redirected)
    assert (ended, "Traceback" in said) == (code, False), said


@pytest.mark.parametrize(
    ("words", "code", "right"),
    [
        ((*CLI, "consume", "t", "c", "os:remove", "--shutdown-timeout"), 2, "0 or more"),
        ((*CLI, "consume", "t", "c", "os:remove", "--requeue-delay"), 2, "a number of seconds"),
        ((*CLI, "stat", "--interval"), 2, "0.1 or more"),
        ((*CLI, "spark", "replay", "folder", "--rate"), 2, "more than 0"),
        ((*CLI, "pub", "t", "--timeout"), 2, "a number of seconds"),
        ((*MANAGE, "nsq_consume", "--shutdown-timeout"), 1, "0 or more"),
        ((*MANAGE, "nsq_publish", "t", "one", "--timeout"), 1, "a number of seconds"),
        ((*MANAGE, "nsq_publish", "t", "one", "--defer"), 1, "a number of seconds"),
        ((*NSQ, "consume", "--shutdown-timeout"), 2, "0 or more"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_nan_is_wrong_usage(
    commands: Commands, words: tuple[str, ...], code: int, right: str
) -> None:
    ended, said = commands(*words, "nan")
    assert ended == code, said
    assert right in said
    assert "Traceback" not in said


NEEDS_FULL = pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="needs a device that is full"
)


@NEEDS_FULL
@pytest.mark.parametrize(
    "words",
    [
        (*CLI, "pub", "TOPIC", "bodies", "-t", "NSQD"),
        (*CLI, "pub", "TOPIC", "bodies", "-t", "NSQD", "--json"),
        (*CLI, "stat", "--once", "-H", "HTTP"),
        # It does not go on without --once.
        (*CLI, "stat", "-H", "HTTP"),
        (*CLI, "stat", "-H", "HTTP", "--json"),
        (*MANAGE, "nsq_publish", "TOPIC", "one", "two"),
        (*MANAGE, "nsq_stat"),
        (*MANAGE, "nsq_consume", "--list"),
        (*NSQ, "publish", "TOPIC", "one", "two"),
        (*NSQ, "stat", "--json"),
        (*NSQ, "consume", "--list"),
    ],
    ids=" ".join,
)
def test_full_output_is_one_sentence(commands: Commands, words: tuple[str, ...]) -> None:
    """And what was published is told there."""
    (commands.folder / "bodies").write_text("one\ntwo\n")
    with NsqdHTTP(url(commands.nsqd)) as http:
        # There is something to show.
        http.create_topic(unique("output"))
    places = {"TOPIC": commands.topic, "NSQD": address(commands.nsqd), "HTTP": url(commands.nsqd)}
    code, said = commands(*(places.get(word, word) for word in words), redirected=">/dev/full")
    assert code == 1
    assert "cannot write to standard output: No space left" in said
    assert len(said.splitlines()) == 1
    if "TOPIC" in words:
        assert re.search(rf"2 (messages )?published to {commands.topic}, then: ", said)
        assert commands.published() == 2


@NEEDS_FULL
@pytest.mark.parametrize(
    ("redirected", "why"), [(">/dev/full", "No space left"), (">&-", "standard output is closed")]
)
def test_tail_ends_when_it_cannot_write(commands: Commands, redirected: str, why: str) -> None:
    """And what it has not written is at nsqd."""
    with NsqdHTTP(url(commands.nsqd)) as http:
        http.create_topic(commands.topic)
        http.create_channel(commands.topic, "c")
        http.mpub(commands.topic, [b"one", b"two", b"three"])
        words = ("tail", commands.topic, "-c", "c", "--nsqd-tcp-address", address(commands.nsqd))
        code, said = commands(*CLI, *words, redirected=redirected)
        assert code == 1
        assert why in said
        assert len(said.splitlines()) == 1
        (channel,) = http.stats(commands.topic).topics[0].channels
        assert (channel.depth, channel.in_flight_count) == (3, 0)
