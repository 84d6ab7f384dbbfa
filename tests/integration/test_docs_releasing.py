"""The pages on releases and on support: the commands work up to the upload, the rows are true."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gnsqsync
from tests.support.claims import check_named_tests
from tests.support.needs import missing
from tests.support.texts import DOCS, ROOT, project

RELEASING = (DOCS / "design" / "releasing.rst").read_text(encoding="utf-8")
SUPPORT = (DOCS / "design" / "support.rst").read_text(encoding="utf-8")


def commands() -> list[str]:
    return re.findall(r"^      \$ (.*)$", RELEASING, re.MULTILINE)


@pytest.mark.timeout(600)
def test_the_commands_of_a_release(tmp_path: Path) -> None:
    """In a clone; the tools are those of the environment that runs the tests, if it has them."""
    checkout = tmp_path / "gnsqsync"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(checkout)], check=True)
    lines = commands()
    assert lines[:2] == [
        "python3 -m venv .venv && . .venv/bin/activate",
        "pip install -q --upgrade pip && pip install -q --group release",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    places = [os.path.realpath(sys.base_prefix) + "/bin", os.environ["PATH"]]
    done = subprocess.run(
        ["bash", "-c", "\n".join(["set -e", *lines])],
        cwd=checkout,
        env={**environment, "PATH": os.pathsep.join(places)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=580,
    )
    if "No matching distribution" in done.stdout:
        missing(LookupError(f"no package index: {done.stdout}"))
    assert done.returncode == 0, done.stdout
    assert f"\n{gnsqsync.__version__}\n" in done.stdout
    material = json.loads((checkout / "gnsqsync.cdx.json").read_text("utf-8"))
    assert (material["bomFormat"], material["specVersion"]) == ("CycloneDX", "1.6")
    parts = {part["name"]: part for part in material["components"]}
    # "gnsqsync and what it needs": nothing of the tools beside it.
    assert set(parts) >= {"gnsqsync", "gevent", "requests", "python-snappy"}
    assert not set(parts) & {"pip", "setuptools", "twine"}
    assert all(part["version"] and part["licenses"] for part in parts.values())
    sums = (checkout / "SHA256SUMS").read_text("utf-8").split()[1::2]
    assert sorted(sums) == sorted(path.name for path in (checkout / "dist").iterdir())


def test_two_builds_are_one_wheel(tmp_path: Path) -> None:
    """ "byte for byte" """
    wheels = []
    for name in ("one", "two"):
        source = tmp_path / name
        source.mkdir()
        for each in ("pyproject.toml", "setup.cfg", "setup.py", "README.rst", "LICENSE"):
            shutil.copy(ROOT / each, source)
        shutil.copytree(
            ROOT / "gnsqsync", source / "gnsqsync", ignore=shutil.ignore_patterns("__pycache__")
        )
        words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", "out"]
        subprocess.run(
            words,
            cwd=source,
            env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=110,
        )
        (wheel,) = (source / "out").iterdir()
        wheels.append(wheel.read_bytes())
    assert wheels[0] == wheels[1]


def test_the_version_stands_in_one_file() -> None:
    assert project()["dynamic"][0] == "version"
    number = gnsqsync.__version__
    files = ["pyproject.toml", "setup.cfg", "setup.py", "docs/conf.py"]
    files += [str(path.relative_to(ROOT)) for path in (ROOT / "gnsqsync").rglob("*.py")]
    found = [
        name
        for name in files
        if re.search(rf"version.*[\"']{re.escape(number)}[\"']", (ROOT / name).read_text("utf-8"))
    ]
    assert found == ["gnsqsync/_version.py"]


def test_the_pythons_of_the_support_page() -> None:
    name = r"Programming Language :: Python :: (3\.\d+)"
    promised = [each[1] for line in project()["classifiers"] if (each := re.fullmatch(name, line))]
    assert f"   * - Python\n     - {', '.join(promised)}\n" in SUPPORT


def test_the_lower_bounds_of_the_support_page() -> None:
    extras = project()["optional-dependencies"]
    allowed = {*project()["dependencies"], *extras["django"], *extras["flask"]}
    told = re.findall(r"``(\w+>=[\d.]+)``", SUPPORT)
    assert len(told) == 3 and set(told) <= allowed


def criteria() -> list[list[str]]:
    table = SUPPORT.split("Criterion | Now | Shown by\n")[1]
    return [line.strip().split(" | ") for line in table.strip().splitlines()]


@pytest.mark.parametrize("row", criteria(), ids=lambda row: row[0][:40])
def test_a_criterion_that_holds_names_tests(row: list[str]) -> None:
    _, holds, shown_by = row
    assert holds in ("yes", "no")
    if holds == "yes":
        check_named_tests(shown_by)
    else:
        assert "tests/" not in shown_by and shown_by.strip()
