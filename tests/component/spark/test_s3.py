"""The log on S3, as moto's server has it: exclusive create, the probe, racing attempts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("s3fs")
pytest.importorskip("moto.server", reason="could not import 'moto.server'")

from botocore.exceptions import EndpointConnectionError

from gnsqsync.errors import ConfigError
from gnsqsync.spark import transport
from gnsqsync.spark.object_store import ObjectStore
from gnsqsync.spark.open_store import open_store
from gnsqsync.spark.stores import Store
from gnsqsync.spark.wal import Wal, pending
from tests.component.spark.test_read_task import Source, together
from tests.support import leftovers, s3
from tests.support.servers import Site, unique


def kept_by_fsspec(left: leftovers.Alive) -> leftovers.Alive:
    """fsspec keeps a thread, and s3fs connections to the server, until the process ends."""
    threads = {thread for thread in left.threads if thread.name in ("fsspecIO", "asyncio_0")}
    return leftovers.Alive(threads, set(), left.sockets, set())


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """walOptions for a server of this module, which has an empty bucket."""
    leftovers.keepers.append(kept_by_fsspec)
    try:
        with s3.running(tmp_path_factory.mktemp("moto")) as server:
            yield server.options
    finally:
        leftovers.keepers.remove(kept_by_fsspec)


@pytest.fixture
def url() -> str:
    return f"s3://bucket/{unique('wal')}"


@pytest.fixture
def store(url: str, options: dict[str, Any]) -> Store:
    return open_store(url, options)


def test_the_first_create_wins(store: Store) -> None:
    assert isinstance(store, ObjectStore)
    assert store.create("s/e=0/p=0/0", b"first")
    assert not store.create("s/e=0/p=0/0", b"second")
    assert store.read("s/e=0/p=0/0") == b"first"


def test_the_rest_of_a_store(store: Store) -> None:
    assert store.read("s/committed") is None
    assert store.list("s") == []
    store.put("s/committed", b"[1, 0]")
    store.put("s/committed", b"[2, 0]")
    assert store.read("s/committed") == b"[2, 0]"
    at = store.modified("s/committed")
    assert at is not None
    assert abs(at - time.time()) < 600
    assert store.modified("s/nothing") is None
    for name in ("s/e=10/p=0/0", "s/e=1/p=0/0", "t/plan"):
        store.create(name, b"")
    assert store.list() == ["s/committed", "s/e=1/p=0/0", "s/e=10/p=0/0", "t/plan"]
    assert store.list("s/e=1") == ["s/e=1/p=0/0"]
    store.delete(["t/plan", "t/gone"])
    store.delete_folder("s/e=1")
    store.delete_folder("s/e=1")
    assert store.list() == ["s/committed", "s/e=10/p=0/0"]
    assert store.create("s/e=1/p=0/0", b"new")


def test_the_heads_of_several(store: Store) -> None:
    store.create("a/1", b"0123456789")
    store.create("a/2", b"01")
    assert store.heads(["a/1", "a/nothing", "a/2"], 4) == [b"0123", None, b"01"]


def test_a_list_has_what_another_process_made(store: Store, url: str, options: Any) -> None:
    assert store.list("s") == []
    other = open_store(url, {**options, "skip_instance_cache": True})
    other.create("s/0", b"")
    assert store.list("s") == ["s/0"]


def test_one_of_many_threads_wins(url: str, options: dict[str, Any]) -> None:
    wins: list[tuple[int, bytes]] = []
    meeting = threading.Barrier(6)

    def race(who: bytes) -> None:
        store = open_store(url, options)
        for name in range(10):
            meeting.wait(60)
            if store.create(f"s/{name}", who):
                wins.append((name, who))

    threads = [threading.Thread(target=race, args=(b"%d" % n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    store = open_store(url, options)
    assert sorted(name for name, _ in wins) == list(range(10))
    assert all(store.read(f"s/{name}") == who for name, who in wins)


@pytest.mark.parametrize("lost", [FileExistsError, EndpointConnectionError])
def test_a_create_whose_answer_was_lost(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, lost: type[Exception]
) -> None:
    """The library repeats it by itself and meets the object, or it is repeated here."""
    real = store._fs.pipe_file
    errors = [FileExistsError("412") if lost is FileExistsError else lost(endpoint_url="x")]

    def put(path: str, data: bytes, mode: str) -> None:
        real(path, data, mode=mode)
        if errors:
            raise errors.pop()

    monkeypatch.setattr(store._fs, "pipe_file", put)
    assert store.create("s/0", b"mine")
    assert not store.create("s/0", b"another's")
    errors[:] = [lost(endpoint_url="x")] if lost is not FileExistsError else [FileExistsError()]
    store.probe()


def test_a_store_that_refuses_connections(
    url: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_PATIENCE", 0.0)
    away = {
        **options,
        "client_kwargs": {"endpoint_url": "http://127.0.0.1:1", "region_name": "us-east-1"},
        "config_kwargs": {"retries": {"max_attempts": 0}},
    }
    store = open_store(url, away)
    for call in (
        store.probe,
        store.list,
        store.folders,
        lambda: store.read("s/0"),
        lambda: store.heads(["s/0"], 4),
        lambda: store.exists("s/0"),
        lambda: store.put("s/0", b""),
        lambda: store.delete(["s/0"]),
    ):
        with pytest.raises(
            ConnectionError, match=r"could not be reached .* EndpointConnectionError"
        ):
            call()


def test_a_conflict_is_tried_again(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["ConditionalRequestConflict", "ConditionalRequestConflict", "PreconditionFailed"]
    tries: list[str] = []

    class Answer(Exception):
        def __init__(self) -> None:
            self.response = {"Error": {"Code": answers[len(tries)]}}

    def refuse(path: str, data: bytes, mode: str) -> None:
        answer = Answer()
        tries.append(mode)
        raise OSError("refused") from answer

    monkeypatch.setattr(store._fs, "pipe_file", refuse)
    assert not store.create("s/0", b"")
    assert tries == ["create"] * 3
    answers[:] = ["AccessDenied"] * 4
    with pytest.raises(OSError, match="refused"):
        store.create("s/0", b"")
    assert len(tries) == 4


def test_the_probe(store: Store, options: dict[str, Any]) -> None:
    store.probe()
    assert store.list() == []
    with pytest.raises(ConfigError, match="cannot be written and read"):
        open_store("s3://no-such-bucket/wal", options).probe()


def test_s3a_is_s3(url: str, options: dict[str, Any]) -> None:
    open_store(url, options).create("s/0", b"x")
    assert open_store(url.replace("s3://", "s3a://"), options).read("s/0") == b"x"


def test_racing_attempts(site: Site, tmp_path: Path, url: str, options: dict[str, Any]) -> None:
    source = Source(site.nsqd(), tmp_path)
    source.wal = Wal(open_store(url, options), "stream", retention=0)
    source.wal.announce()
    bodies = source.publish(200)
    read = {"wal_path": url, "wal_options": options, "max_in_flight": 50}
    # An attempt whose messages others have ends by its silence.
    results = together(*[lambda: source.read(200, poll_timeout=0.5, **read)] * 3)
    assert all(rows == results[0] for rows in results), results
    assert sorted(results[0] + source.rest(200 - len(results[0]), 1, **read)) == bodies
    assert sum(epoch.rows for epoch in pending(url, options)) == 200
    for epoch in source.wal.epochs():
        source.wal.commit(epoch, 0, 0)
    assert source.wal.epochs() == []
    source.close()
