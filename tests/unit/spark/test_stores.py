"""Where the log may lie: exclusive create on a disk, durable in order; what is refused."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gnsqsync.errors import ConfigError
from gnsqsync.spark.open_store import open_store
from gnsqsync.spark.stores import FileStore, Store


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(str(tmp_path / "wal"))


def test_the_first_create_wins(store: Store) -> None:
    assert store.create("s/e=0/p=0/0", b"first")
    assert not store.create("s/e=0/p=0/0", b"second")
    assert store.read("s/e=0/p=0/0") == b"first"


def test_a_link_that_nfs_repeats_is_our_own(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request made the link, and its answer was lost."""
    real = os.link

    def repeated(source: Any, target: Any) -> None:
        real(source, target)
        raise FileExistsError(target)

    monkeypatch.setattr(os, "link", repeated)
    assert store.create("s/e=0/p=0/0", b"mine")
    assert not store.create("s/e=0/p=0/0", b"another's")
    assert store.read("s/e=0/p=0/0") == b"mine"
    store.probe()


def test_missing_files_of_a_store(store: Store) -> None:
    assert store.read("s/committed") is None
    assert store.list("s") == []
    store.delete(["s/committed"])
    store.delete_folder("s")


def test_when_a_name_was_written(store: Store, tmp_path: Path) -> None:
    store.put("s/committed", b"")
    os.utime(tmp_path / "wal" / "s" / "committed", (1000.0, 1000.5))
    assert store.modified("s/committed") == 1000.5
    assert store.modified("s/nothing") is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("refused_from", [1, 2])
def test_a_full_disk_is_told_and_nothing_is_left(
    store: FileStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    refused_from: int,
) -> None:
    """The disk has room for no file, or for one."""
    written: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            written.append(descriptor)
            if len(written) >= refused_from:
                raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "exists", lambda path: False)
    with pytest.raises(ConfigError, match="make room there, or set walPath to another place"):
        store.probe()
    monkeypatch.undo()
    assert store.list() == []
    assert [*tmp_path.rglob(".tmp-*")] == []


def test_put_replaces(store: Store) -> None:
    store.put("s/committed", b"[1, 0]")
    store.put("s/committed", b"[2, 0]")
    assert store.read("s/committed") == b"[2, 0]"


def test_a_list_has_what_is_below_a_folder(store: Store) -> None:
    for name in ("s/e=10/p=0/0", "s/e=1/p=0/0", "s/committed", "t/plan"):
        store.create(name, b"")
    assert store.list() == ["s/committed", "s/e=1/p=0/0", "s/e=10/p=0/0", "t/plan"]
    assert store.list("s/e=1") == ["s/e=1/p=0/0"]


def test_delete(store: Store) -> None:
    for name in ("s/a", "s/b", "s/c"):
        store.create(name, b"")
    store.delete(["s/a", "s/gone", "s/c"])
    assert store.list() == ["s/b"]


def test_a_name_can_be_created_again_after_its_folder_is_gone(store: Store) -> None:
    assert store.create("s/e=1/p=0/0", b"old")
    store.delete_folder("s/e=1")
    assert store.list() == []
    assert store.create("s/e=1/p=0/0", b"new")


def test_one_of_many_threads_wins(store: Store) -> None:
    wins: list[tuple[int, bytes]] = []
    together = threading.Barrier(6)

    def race(who: bytes) -> None:
        for name in range(20):
            together.wait(30)
            if store.create(f"s/{name}", who):
                wins.append((name, who))

    threads = [threading.Thread(target=race, args=(b"%d" % n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(name for name, _ in wins) == list(range(20))
    assert all(store.read(f"s/{name}") == who for name, who in wins)


class Disk:
    """Writes down what is done to the disk, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self._patch = monkeypatch
        for name in ("fsync", "link", "replace", "unlink"):
            self._watch(name)

    def _watch(self, name: str) -> None:
        original: Callable[..., Any] = getattr(os, name)

        def watched(*args: Any) -> Any:
            what = name
            if name == "fsync":
                target = os.readlink(f"/proc/self/fd/{args[0]}")
                what = "fsync folder" if os.path.isdir(target) else "fsync file"
            self.calls.append(what)
            return original(*args)

        self._patch.setattr(os, name, watched)


def test_an_entry_is_durable_before_it_has_its_name(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("s/0", b"")
    disk = Disk(monkeypatch)
    store.create("s/1", b"data")
    assert disk.calls == ["fsync file", "link", "unlink", "fsync folder"]
    disk.calls.clear()
    store.put("s/1", b"data")
    assert disk.calls == ["fsync file", "replace", "fsync folder"]


def test_new_folders_are_durable_before_what_is_in_them(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    store.create("s/e=0/p=0/0", b"data")
    # wal in its parent, and s, e=0, p=0 in theirs.
    assert disk.calls == ["fsync folder"] * 4 + ["fsync file", "link", "unlink", "fsync folder"]


def test_files_of_a_killed_writer_are_not_listed_and_go_with_the_folder(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(Exception):
        pass

    def die(*args: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", die)
        patch.setattr(os, "unlink", lambda path: None)
        with pytest.raises(Died):
            store.create("s/e=0/p=0/0", b"data")
    assert store.list() == []
    assert [path for path in (tmp_path / "wal").rglob("*") if path.is_file()]
    store.delete_folder("s/e=0")
    assert not [path for path in (tmp_path / "wal").rglob("*") if path.is_file()]


# -- which paths --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}", "file://localhost{}"])
def test_local_paths(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "a wal"
    store = open_store(form.format(folder).replace(" ", "%20" if form != "{}" else " "))
    assert store.create("s/plan", b"x")
    assert (folder / "s" / "plan").read_bytes() == b"x"


@pytest.mark.parametrize("path", ["hdfs://name/x", "memory://x", "http://x/y", "ftp://x/y"])
def test_a_scheme_without_exclusive_create_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="no exclusive create that is known to work"):
        open_store(path)


def test_a_path_that_each_process_would_look_for_elsewhere() -> None:
    with pytest.raises(ConfigError, match="not absolute"):
        open_store("wal")
    with pytest.raises(ConfigError, match="walPath is empty"):
        open_store("")
    with pytest.raises(ConfigError, match="names another machine"):
        open_store("file://elsewhere/wal")


def test_wal_options(tmp_path: Path) -> None:
    open_store(str(tmp_path), "{}")
    with pytest.raises(ConfigError, match="not JSON"):
        open_store("s3://bucket", "{anon: true}")
    with pytest.raises(ConfigError, match="must be a JSON object"):
        open_store("s3://bucket", "[1]")
    with pytest.raises(ConfigError, match="for object stores"):
        open_store(str(tmp_path), {"anon": True})


# -- the probe ----------------------------------------------------------------------------------


def test_the_probe_leaves_nothing(store: Store) -> None:
    store.probe()
    assert store.list() == []


class Replacing(FileStore):
    """As rename(2) does, and a plain PUT."""

    def create(self, name: str, data: bytes) -> bool:
        self.put(name, data)
        return True


def test_storage_that_lets_two_win_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two writers create one name"):
        Replacing(str(tmp_path)).probe()


def test_storage_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be written and read"):
        FileStore(str(tmp_path / "file" / "wal")).probe()


# -- object stores ------------------------------------------------------------------------------


def test_an_object_store_whose_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    # fsspec keeps the class of a scheme that was opened before.
    known = importlib.import_module("fsspec.registry")._registry
    for scheme in ("s3", "s3a"):
        monkeypatch.delitem(known, scheme, raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.setitem(sys.modules, "s3fs.core", None)
    with pytest.raises(ConfigError, match=r'needs s3fs>=2025\.7: pip install "s3fs>=2025\.7"'):
        open_store("s3a://bucket/wal", {"a fresh": "instance"})


def test_an_object_store_of_a_filesystem_without_create(monkeypatch: pytest.MonkeyPatch) -> None:
    core = pytest.importorskip("fsspec.core")

    class Old:
        def pipe_file(self, path: str, data: bytes) -> None:
            raise AssertionError("nothing is written to it")

    monkeypatch.setattr(core, "url_to_fs", lambda url, **options: (Old(), "bucket/wal"))
    with pytest.raises(ConfigError, match=r"cannot create exclusively; pip install -U"):
        open_store("gs://bucket/wal")


@pytest.mark.parametrize("method", ["list", "sizes", "folders"])
def test_a_folder_that_cannot_be_read_is_an_error(
    store: FileStore, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be listed is an error: its rows would count as gone."""
    store.create("s/e=1/p=0/0", b"")
    scandir = os.scandir

    def forbidden(path: Any) -> Any:
        if str(path).endswith("e=1"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidden)
    with pytest.raises(PermissionError, match="e=1"):
        getattr(store, method)("s/e=1" if method == "folders" else "")
    assert store.list("t") == store.folders("t") == []
