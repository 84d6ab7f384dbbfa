"""The pages for users of pynsq and gnsq: nothing of theirs left out, nothing of ours made up."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import gnsqsync
import gnsqsync.errors
from gnsqsync import ConnectionOptions, Reader, Writer
from gnsqsync.embedded import Nsqd
from tests.support.texts import DOCS, ROOT, code_blocks, replaced
from tests.support.waiting import eventually

# Facts about releases that change no more: parameters of constructors with their defaults, and
# public names. pynsq 0.9.1 and gnsq 1.0.2, read with inspect.signature.
OPTIONS = {
    ("pynsq", "Options of nsq.Reader"): (
        "topic, channel, message_handler=None, name=None, nsqd_tcp_addresses=None,"
        " lookupd_http_addresses=None, max_tries=5, max_in_flight=1, lookupd_poll_interval=60,"
        " low_rdy_idle_timeout=10, max_backoff_duration=128, lookupd_poll_jitter=0.3,"
        " lookupd_connect_timeout=1, lookupd_request_timeout=2"
    ),
    ("pynsq", "Options of nsq.Writer"): "nsqd_tcp_addresses, reconnect_interval=15.0, name=None",
    ("pynsq", "Options of both"): (
        "timeout=1.0, heartbeat_interval=30, requeue_delay=90, tls_v1=False, tls_options=None,"
        " snappy=False, deflate=False, deflate_level=6, user_agent='pynsq/0.9.1',"
        " output_buffer_size=16384, output_buffer_timeout=250, sample_rate=0, auth_secret=None,"
        " msg_timeout=None, hostname=None"
    ),
    ("gnsq", "Options of gnsq.Consumer"): (
        "topic, channel, nsqd_tcp_addresses=[], lookupd_http_addresses=[], name=None,"
        " message_handler=None, max_tries=5, max_in_flight=1, requeue_delay=0,"
        " lookupd_poll_interval=60, lookupd_poll_jitter=0.3, low_ready_idle_timeout=10,"
        " max_backoff_duration=128, backoff_on_requeue=True"
    ),
    ("gnsq", "Options of gnsq.Producer"): "nsqd_tcp_addresses=[], max_backoff_duration=128",
    ("gnsq", "Options of both"): (
        "timeout=60.0, client_id=None, hostname=None, heartbeat_interval=30,"
        " output_buffer_size=16384, output_buffer_timeout=250, tls_v1=False, tls_options=None,"
        " snappy=False, deflate=False, deflate_level=6, sample_rate=0, auth_secret=None,"
        " user_agent='gnsq/1.0.2'"
    ),
}
MESSAGE = "id body timestamp attempts enable_async is_async finish requeue touch has_responded"
ADMIN = "create_topic delete_topic create_channel delete_channel"
NAMES = {
    ("pynsq", "nsq.Reader"): (
        "close connect_to_nsqd disabled giving_up heartbeat is_starved preprocess_message"
        " process_message query_lookupd set_max_in_flight set_message_handler validate_message"
    ),
    ("pynsq", "nsq.Writer"): "connect connect_to_nsqd dpub heartbeat mpub pub",
    ("pynsq", "nsq.Message"): f"{MESSAGE} on off trigger",
    ("gnsq", "gnsq.Consumer"): (
        "close connect_to_nsqd is_running is_starved join on_auth on_close on_error on_exception"
        " on_finish on_giving_up on_message on_requeue on_response query_lookupd query_nsqd"
        " redistribute_ready_state start total_in_flight total_ready_count"
    ),
    ("gnsq", "gnsq.Producer"): (
        "close connect_to_nsqd is_running join multipublish on_auth on_close on_error on_response"
        " publish start"
    ),
    ("gnsq", "gnsq.Message"): f"{MESSAGE} on_finish on_requeue on_touch",
    ("gnsq", "gnsq.NsqdHTTPClient"): (
        f"{ADMIN} empty_topic pause_topic unpause_topic empty_channel pause_channel"
        " unpause_channel from_url info multipublish ping publish stats"
    ),
    ("gnsq", "gnsq.LookupdClient"): (
        f"{ADMIN} channels from_url info lookup nodes ping tombstone_topic topics"
    ),
    ("gnsq", "gnsq.errors"): (
        "NSQAuthDisabled NSQAuthFailed NSQBadBody NSQBadChannel NSQBadMessage NSQBadTopic"
        " NSQErrorCode NSQException NSQFinishFailed NSQFrameError NSQHttpError NSQInvalid"
        " NSQMPubFailed NSQNoConnections NSQPubFailed NSQPutFailed NSQRequeueFailed"
        " NSQRequeueMessage NSQSocketError NSQTouchFailed NSQUnauthorized"
    ),
}
CONSTRUCTORS = {"Reader": "Options of nsq.Reader", "Writer": "Options of nsq.Writer"} | {
    "Consumer": "Options of gnsq.Consumer",
    "Producer": "Options of gnsq.Producer",
}
PEERS = ["pynsq", "gnsq"]


def text_of(peer: str) -> str:
    return (DOCS / "migration" / f"{peer}.rst").read_text(encoding="utf-8")


def tables(peer: str) -> Iterator[tuple[str, list[list[str]]]]:
    """Each list-table: what it is of (its section or its first heading), and the rows below."""
    for part in re.split(r"^\.\. list-table::$", text_of(peer), flags=re.M)[1:]:
        body = re.match(r"(?:\n(?:   .*)?)+", part)
        assert body is not None
        rows = []
        for row in re.split(r"^   \* - ", body[0], flags=re.M)[1:]:
            cells = re.split(r"^     -(?: |$)", row, flags=re.M)
            rows.append([" ".join(cell.split()) for cell in cells])
        yield rows[0][0], rows[1:]


def table(peer: str, title: str) -> list[list[str]]:
    """The first table behind the section ``title``."""
    found = re.search(
        rf"^{re.escape(title)}\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", text_of(peer), re.M | re.S
    )
    assert found is not None, f"no section {title!r}"
    before = text_of(peer)[: found.start()].count("\n.. list-table::")
    return list(tables(peer))[before][1]


def literals(cell: str) -> list[str]:
    return re.findall(r"``(.+?)``", cell)


def parameters(text: str) -> dict[str, Any]:
    """The defaults, by name, of a parameter list as Python writes it."""
    function = ast.parse(f"def f({text}): pass").body[0]
    assert isinstance(function, ast.FunctionDef)
    names = [argument.arg for argument in function.args.args]
    defaults = [f"``{ast.unparse(default)}``" for default in function.args.defaults]
    return dict(zip(names, ["required"] * (len(names) - len(defaults)) + defaults, strict=True))


def our_options(owner: type) -> set[str]:
    return set(inspect.signature(owner).parameters) - {"connection_options", "connection"}


OURS = {owner.__name__: our_options(owner) for owner in (Reader, Writer, ConnectionOptions)}


@pytest.mark.parametrize(("peer", "title"), OPTIONS)
def test_every_option_of_theirs_is_there_with_its_default(peer: str, title: str) -> None:
    rows = table(peer, title)
    told = [(name, default) for name, default, _, _ in rows]
    assert dict(told) == {f"``{n}``": d for n, d in parameters(OPTIONS[peer, title]).items()}
    assert len(told) == len(dict(told))


@pytest.mark.parametrize(("peer", "title"), OPTIONS)
def test_every_option_of_ours_exists(peer: str, title: str) -> None:
    known = set(OURS["ConnectionOptions"])
    if not title.endswith(("Writer", "Producer")):
        known |= OURS["Reader"]
    if not title.endswith(("Reader", "Consumer")):
        known |= OURS["Writer"]
    for name, _, here, _ in table(peer, title):
        assert literals(here), f"{name} has nothing beside it"
        assert set(literals(here)) <= known | {"-"}, name


@pytest.mark.parametrize(("peer", "owner"), NAMES)
def test_every_public_name_of_theirs_is_there(peer: str, owner: str) -> None:
    title = f"Methods of {owner}"
    if title in text_of(peer):
        rows = table(peer, title)
    else:
        rows = dict(tables(peer))[owner]
    told = [literals(name)[0] for name, _, _ in rows]
    assert sorted(told) == sorted(NAMES[peer, owner].split())
    assert all(literals(here) for _, here, _ in rows)


@pytest.mark.parametrize("peer", PEERS)
def test_every_call_of_ours_exists(peer: str) -> None:
    """``Class.name(keyword=)`` and ``Class(keyword=)``, wherever on the page."""
    classes = "|".join(name for name in gnsqsync.__all__ if name[0].isupper())
    seen = 0
    for name, _, attribute, keywords in re.findall(
        rf"``(?:raise )?({classes})(\.(\w+))?(?:\(([^`]*)\))?``", text_of(peer)
    ):
        target = getattr(gnsqsync, name)
        if attribute:
            assert hasattr(target, attribute), f"{name}.{attribute}"
            target = getattr(target, attribute)
        given = set(re.findall(r"(\w+)=", keywords))
        known = set(inspect.signature(target).parameters) if given else set()
        assert given <= known | (OURS["ConnectionOptions"] if name in OURS else set())
        seen += 1
    assert seen > 30


def test_every_error_of_ours_exists() -> None:
    for _, here, text in dict(tables("gnsq"))["gnsq.errors"]:
        for name in literals(here):
            assert name in ("-", "gnsqsync.Requeue") or hasattr(gnsqsync.errors, name), name
        for name in re.findall(r"``([A-Z]\w+)``", text):
            assert hasattr(gnsqsync.errors, name), name


@pytest.mark.parametrize("peer", PEERS)
def test_the_program_of_theirs_uses_options_that_they_have(peer: str) -> None:
    (block,) = code_blocks(DOCS / "migration" / f"{peer}.rst", "python")
    checked = 0
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            title = CONSTRUCTORS.get(node.func.attr)
            if title is not None:
                known = parameters(OPTIONS[peer, title]) | parameters(
                    OPTIONS[peer, "Options of both"]
                )
                assert {keyword.arg for keyword in node.keywords} <= set(known)
                checked += 1
    assert checked == 2


# -- coming from a task queue or Kafka: our programs run, theirs are said not to be run ------------

# Page, the numbers of our blocks, the function that the block calls, what it gets.
PROGRAMS = [
    ("kafka", 1, "handle", b'{"number": 1}'),
    ("task-queues", 3, "make_thumbnail", "photos/7.png"),
]


@pytest.mark.parametrize(("page", "number", "name", "expected"), PROGRAMS)
def test_our_program_runs(page: str, number: int, name: str, expected: object) -> None:
    block = code_blocks(DOCS / "migration" / f"{page}.rst", "python")[number]
    got: list[object] = []
    with Nsqd() as nsqd:
        here = {"127.0.0.1:4150": nsqd.tcp_address, "reader.start()": "reader.start(block=False)"}
        names: dict[str, Any] = {name: got.append}
        exec(replaced(block, here), names)
        try:
            eventually(lambda: got == [expected])
        finally:
            names["reader"].stop()


def test_our_handler_in_django_runs() -> None:
    block = code_blocks(DOCS / "migration" / "task-queues.rst", "python")[1]
    program = f"""
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["gnsqsync.django"],
    GNSQSYNC={{"default": {{"NSQD": ["127.0.0.1:4150"], "BACKEND": "eager"}}}},
)
django.setup()
mail_invoice = print
{block}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "7\n", done.stderr


def test_blocks_that_are_not_run_have_a_reason() -> None:
    for page in ("kafka", "task-queues"):
        text = (DOCS / "migration" / f"{page}.rst").read_text(encoding="utf-8")
        theirs = [
            block
            for block in code_blocks(DOCS / "migration" / f"{page}.rst", "python")
            if "gnsqsync" not in block
        ]
        assert len(theirs) == len(re.findall(r"not run by our tests", text))
