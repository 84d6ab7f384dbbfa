"""What a package index and a busy environment meet: names, dependencies, clocks, old syntax."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.interpreter import run_script
from tests.support.texts import project

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gnsqsync"

# They tell people, files and databases what time it is; two processes share no other clock.
WITH_A_CALENDAR = {"admin", "cli", "contrib", "django", "embedded", "daemon", "spark"}
# In the place of nsqd, which says when it got a message; and what reads and writes such stamps.
STAMPS = {
    PACKAGE / "testing" / "eager.py",
    PACKAGE / "dead_letters" / "letter.py",
    PACKAGE / "reader" / "death.py",
    PACKAGE / "reader" / "expiry.py",
    PACKAGE / "reader" / "timings.py",
    PACKAGE / "outbox" / "cron.py",
    PACKAGE / "outbox" / "due.py",
    PACKAGE / "outbox" / "outbox_rows.py",
    PACKAGE / "outbox" / "relay.py",
    PACKAGE / "outbox" / "table_store.py",
    PACKAGE / "cluster" / "looking.py",
}
WALL_CLOCK = {"time", "time_ns", "localtime", "gmtime", "ctime"}
# Words that became keywords or may be mistaken for modules; pynsq had an argument "async".
NEW_WORDS = {"async", "await", "match", "case", "type"}


def wall_clocks(source: str) -> Iterator[int]:
    """Yield the lines that read a clock which somebody may set."""
    if not re.search(r"\b(time|datetime)\b", source):
        return  # Parsing all of the package would take a second.
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "time" and node.attr in WALL_CLOCK:
                yield node.lineno
        elif isinstance(node, ast.Import):
            if any(alias.name == "datetime" for alias in node.names):
                yield node.lineno
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            if node.module == "datetime" or (node.module == "time" and names & WALL_CLOCK):
                yield node.lineno


def test_entry_points_load() -> None:
    """``flask`` loads its own before each application, also before one that patches by gevent."""
    (nsq,) = project()["entry-points"]["flask.commands"].values()
    pytest.importorskip("flask")
    out = run_script(f"""
        import sys
        from importlib.metadata import EntryPoint
        print(EntryPoint("nsq", {nsq!r}, "flask.commands").load().name)
        print([name for name in sys.modules if name.startswith("gnsqsync.runtime")])
    """)
    assert out.split() == ["nsq", "[]"]


def test_no_interval_of_the_client_is_measured_by_the_wall_clock() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in WITH_A_CALENDAR and path not in STAMPS
        for line in wall_clocks(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_a_wall_clock_is_found() -> None:
    source = "import time\nimport datetime\nfrom time import time\ntime.time()\ntime.monotonic()"
    assert list(wall_clocks(source)) == [2, 3, 4]


def test_one_name_of_our_own_is_installed() -> None:
    """Two distributions with one top-level name write over each other's files."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    include = config["packages"]["find"]["include"]
    assert {pattern.split(".")[0] for pattern in include} == {"gnsqsync"}
    # Spark looks for modules with this prefix; the rest of the name is ours.
    assert config["py-modules"] == ["pyspark_gnsqsync"]
    assert project()["name"] == "gnsqsync"


def test_dependencies_are_few_and_have_lower_bounds_only() -> None:
    """No event loop and no pin that could fight with an application's own."""
    required = project()["dependencies"]
    extras = project()["optional-dependencies"]
    assert {re.split(r"\W", line.replace("-", "_"))[0] for line in required} == {
        "gevent",
        "requests",
        "python_snappy",
    }
    for line in required + [line for extra in extras.values() for line in extra]:
        assert re.fullmatch(r"[\w-]+(\[[\w,]+\])?(>=[\d.]+)?", line.split(";")[0]), line
        # The tests run the guides' applications.
        if line not in extras["test"]:
            assert re.split(r"[^\w-]", line)[0] not in ("tornado", "trio", "anyio"), line


def test_the_sources_are_python_of_the_oldest_version_that_is_promised() -> None:
    minor = int(re.fullmatch(r">=3\.(\d+)", project()["requires-python"])[1])  # type: ignore[index]
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source, feature_version=(3, minor))
        # A parameter with such a name has the name in its source.
        if re.search(rf"\b({'|'.join(NEW_WORDS)})\b", source):
            names = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
            assert not names & NEW_WORDS, path
        assert not {*path.relative_to(PACKAGE).parts, path.stem} & NEW_WORDS


def test_each_except_that_takes_exceptions_from_outside_says_why() -> None:
    """As docs/design/threads-and-locks has it: on its line, or on the first line of its block."""
    silent = []
    for path in sorted(PACKAGE.rglob("*.py")):
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if line.lstrip().startswith("except BaseException"):
                said = line.partition("#")[2].removeprefix(" noqa: BLE001").strip(" -")
                if not said and not lines[number + 1].lstrip().startswith("#"):
                    silent.append(f"{path}:{number + 1}")
    assert not silent, "\n".join(silent)
