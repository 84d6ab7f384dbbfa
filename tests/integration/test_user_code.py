"""What type checkers say of code that uses gnsqsync, and of what gnsqsync exports."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.needs import NoExtra, missing
from tests.support.texts import ROOT

pytestmark = pytest.mark.timeout(300)

PAGES = Path(__file__).parent / "types"
RIGHT, WRONG = PAGES / "right_calls.py", PAGES / "wrong_calls.py"


def need(module: str) -> None:
    if find_spec(module) is None:
        missing(NoExtra(module, "test,spark-test"))


def run(*arguments: str, cwd: Path = ROOT, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    ).stdout


def by_mypy() -> dict[Path, dict[int, str]]:
    """Line -> objection, of each page, with the options of a user who has no config."""
    said = run(
        "mypy",
        "--strict",
        "--config-file=",
        # What mypy says of the package itself is a matter of ``.venv/bin/mypy``.
        "--follow-imports=silent",
        "--no-pretty",
        "--show-absolute-path",
        str(RIGHT),
        str(WRONG),
        MYPYPATH=str(ROOT),
        MYPY_CACHE_DIR=str(ROOT / ".mypy_cache" / "user_code"),
    )
    assert re.search(r"^(Found|Success)", said, re.M), said
    found: dict[Path, dict[int, str]] = {RIGHT: {}, WRONG: {}}
    for place, line, text in re.findall(r"^(\S+):(\d+): error: (.*)$", said, re.M):
        found[Path(place)][int(line)] = text
    return found


def pyright(*arguments: str) -> dict[str, Any]:
    need("pyright")
    said = run("pyright", "--outputjson", "--pythonpath", sys.executable, *arguments)
    answer: dict[str, Any] = json.loads(said)
    return answer


def by_pyright() -> dict[Path, dict[int, str]]:
    found: dict[Path, dict[int, str]] = {RIGHT: {}, WRONG: {}}
    for one in pyright(str(RIGHT), str(WRONG))["generalDiagnostics"]:
        found[Path(one["file"])][one["range"]["start"]["line"] + 1] = one["message"]
    return found


@pytest.fixture(scope="module", params=[by_mypy, by_pyright])
def objections(request: pytest.FixtureRequest) -> dict[Path, dict[int, str]]:
    check: Callable[[], dict[Path, dict[int, str]]] = request.param
    return check()


def test_no_checker_objects_to_right_calls(objections: dict[Path, dict[int, str]]) -> None:
    assert objections[RIGHT] == {}


def test_each_checker_objects_to_each_wrong_call(objections: dict[Path, dict[int, str]]) -> None:
    lines = WRONG.read_text(encoding="utf-8").splitlines()
    marked = {n: line for n, line in enumerate(lines, 1) if re.search(r"\)  # wrong\b", line)}
    assert len(marked) > 50
    assert {n: line for n, line in marked.items() if n not in objections[WRONG]} == {}
    assert {n: text for n, text in objections[WRONG].items() if n not in marked} == {}


def test_every_exported_name_has_a_known_type(tmp_path: Path) -> None:
    """``pyright --verifytypes``, which takes the first Python of the PATH."""
    # Whose classes are bases of ours.
    for module in ("pyright", "pyspark", "pyarrow", "django", "flask", "prometheus_client"):
        need(module)
    said = run(
        "pyright",
        "--outputjson",
        "--verifytypes",
        "gnsqsync",
        "--ignoreexternal",
        cwd=tmp_path,
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        PYTHONPATH=str(ROOT),
    )
    answer = json.loads(said)["typeCompleteness"]
    assert answer["packageRootDirectory"] == str(ROOT / "gnsqsync")
    assert len(answer["symbols"]) > 3000
    assert set(unknown(answer["symbols"])) == set()
    assert answer["completenessScore"] == 1


def unknown(symbols: list[dict[str, Any]]) -> Iterator[str]:
    """What is said of names whose types are not known."""
    for symbol in symbols:
        for one in symbol["diagnostics"]:
            if one["severity"] == "error":
                yield f"{symbol['name']}: {one['message']}"
