"""Files that replace others: the order of sync, name and folder, failures, and who may rename."""

from __future__ import annotations

import ast
import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnsqsync import durable
from tests.support.house import sources

# Calls that give a file another name. A method of these names with one argument is pathlib's.
_OF_OS = {"rename", "renames", "replace", "link", "symlink"}
_OF_PATHS = {"rename", "replace", "hardlink_to", "symlink_to"}
_NAMED = re.compile(rf"\b({'|'.join(sorted({*_OF_OS, *_OF_PATHS, 'move'}))})\b")


class Calls:
    """The calls of ``os`` that matter, in order; ``fails`` are refused with EIO."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        self.fails: set[str] = set()
        for name in ("replace", "link", "fsync"):
            patch.setattr(os, name, self._noting(name, getattr(os, name)))

    def _noting(self, name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            shown = [
                os.readlink(f"/proc/self/fd/{each}") if isinstance(each, int) else str(each)
                for each in arguments
            ]
            text = " ".join([name, *(os.path.basename(each) for each in shown)])
            self.made.append(re.sub(r"\.tmp-[0-9a-f]{32}", "TEMPORARY", text))
            if self.made[-1] in self.fails:
                raise OSError(errno.EIO, "Input/output error")
            return real(*arguments)

        return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calls:
    (tmp_path / "folder").mkdir(exist_ok=True)
    (tmp_path / "folder" / "new").write_bytes(b"new")
    return Calls(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir(exist_ok=True)
    return tmp_path / "folder"


def test_a_written_file_is_synced_then_named_then_its_folder_is_synced(
    folder: Path, calls: Calls
) -> None:
    durable.write(str(folder / "a"), b"1")
    assert calls.made == ["fsync TEMPORARY", "replace TEMPORARY a", "fsync folder"]
    assert (folder / "a").read_bytes() == b"1"


def test_a_created_file_is_synced_then_named_then_its_folder_is_synced(
    folder: Path, calls: Calls
) -> None:
    durable.create(str(folder / "a"), b"1")
    assert calls.made == ["fsync TEMPORARY", "link TEMPORARY a", "fsync folder"]
    with pytest.raises(FileExistsError):
        durable.create(str(folder / "a"), b"2")
    assert (folder / "a").read_bytes() == b"1"
    assert sorted(os.listdir(folder)) == ["a", "new"]


def test_a_renamed_file_is_synced_first(folder: Path, calls: Calls) -> None:
    durable.replace(str(folder / "new"), str(folder / "a"))
    assert calls.made == ["fsync new", "replace new a", "fsync folder"]


def test_a_linked_file_is_synced_first(folder: Path, calls: Calls) -> None:
    durable.link(str(folder / "new"), str(folder / "a"))
    assert calls.made == ["fsync new", "link new a", "fsync folder"]
    (folder / "other").touch()
    with pytest.raises(FileExistsError):
        durable.link(str(folder / "other"), str(folder / "a"))


def test_a_link_that_nfs_repeats_is_known_as_ones_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request made the link, and its answer was lost."""
    real = os.link

    def repeated(source: str, target: str) -> None:
        real(source, target)
        raise FileExistsError(errno.EEXIST, "File exists", source, None, target)

    monkeypatch.setattr(os, "link", repeated)
    durable.create(str(folder / "a"), b"1")
    durable.link(str(folder / "a"), str(folder / "b"))
    assert sorted(os.listdir(folder)) == ["a", "b"]
    monkeypatch.setattr(os, "link", real)
    durable.create(str(folder / "c"), b"2")
    with pytest.raises(FileExistsError):
        durable.link(str(folder / "a"), str(folder / "c"))


def test_many_links_sync_each_folder_once(folder: Path, calls: Calls) -> None:
    new = str(folder / "new")
    durable.link_all((new, str(folder / name)) for name in "aba")
    assert calls.made == [
        *("fsync new", "link new a"),
        *("fsync new", "link new b"),
        *("fsync new", "link new a"),
        "fsync folder",
    ]
    with pytest.raises(FileNotFoundError):
        durable.link_all([(f"{new}er", str(folder / "c"))])


@pytest.mark.parametrize("step", ["fsync TEMPORARY", "replace TEMPORARY a"])
def test_a_failure_keeps_the_old_file_and_nothing_else(
    folder: Path, calls: Calls, step: str
) -> None:
    (folder / "a").write_bytes(b"old")
    calls.fails = {step}
    with pytest.raises(OSError, match="Input/output error"):
        durable.write(str(folder / "a"), b"new one")
    assert (folder / "a").read_bytes() == b"old"
    assert sorted(os.listdir(folder)) == ["a", "new"]


def test_a_folder_that_cannot_be_synced_is_an_error(folder: Path, calls: Calls) -> None:
    calls.fails = {"fsync folder"}
    with pytest.raises(OSError) as caught:
        durable.write(str(folder / "a"), b"new one")
    assert caught.value.filename == str(folder)


def test_a_file_system_without_folder_sync_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    durable.sync_folder(str(folder))


def test_a_symbolic_link_stays(folder: Path, tmp_path: Path) -> None:
    (folder / "a").symlink_to(tmp_path / "elsewhere")
    durable.write(str(folder / "a"), b"1")
    durable.write(str(folder / "a"), b"2")
    assert (folder / "a").is_symlink()
    assert (tmp_path / "elsewhere").read_bytes() == b"2"
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "folder"]


def test_only_the_owner_may_read_where_that_is_asked_for(folder: Path) -> None:
    umask = os.umask(0)
    try:
        durable.write(str(folder / "a"), b"1", 0o600)
    finally:
        os.umask(umask)
    assert (folder / "a").stat().st_mode & 0o777 == 0o600


def renames(source: str) -> Iterator[int]:
    """Yield the lines that rename or link a file by themselves."""
    if not _NAMED.search(source):
        return  # Parsing all of the package would take a second.
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in {"os", "shutil"}:
            yield from [node.lineno] * sum(each.name in _OF_OS | {"move"} for each in node.names)
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        owner, name = ast.unparse(node.func.value), node.func.attr
        if (owner == "os" and name in _OF_OS) or (owner, name) == ("shutil", "move"):
            yield node.lineno
        elif owner in {"os", "durable"} or name not in _OF_PATHS:
            continue
        elif len(node.args) == 1 and not node.keywords:
            yield node.lineno


def test_nothing_renames_or_links_a_file_by_itself() -> None:
    found = [
        f"{name}:{line}"
        for name, source in sources().items()
        if name != "gnsqsync.durable"
        for line in renames(source)
    ]
    assert found == []
    assert len([*renames(sources()["gnsqsync.durable"])]) == 3


@pytest.mark.parametrize(
    "line",
    [
        "os.rename(a, b)",
        "os.replace(a, b)",
        "os.link(a, b)",
        "shutil.move(a, b)",
        "from os import replace",
        "Path(a).replace(b)",
        "path.rename(b)",
        "path.hardlink_to(b)",
    ],
)
def test_such_a_line_is_found(line: str) -> None:
    assert [*renames(line)] == [1]


def test_text_and_dataclasses_are_no_files() -> None:
    lines = "text.replace('a', 'b')\ndataclasses.replace(one, size=2)\nfound.replace(tzinfo=UTC)"
    assert [*renames(lines)] == []


@pytest.mark.parametrize("make", [durable.write, durable.create])
def test_an_error_names_the_file_that_was_asked_for(
    make: Callable[[str, bytes], None], tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        make(str(tmp_path / "nowhere" / "r.png"), b"x")
    assert caught.value.filename == str(tmp_path / "nowhere" / "r.png")
