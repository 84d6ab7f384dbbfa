"""What .ci/run decides: which Pythons it takes, and what happens when a test fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[3] / ".ci" / "run"
TOOLS = ("bash", "dirname", "ls", "sed", "sort")
PROMISED = ("3.11", "3.12", "3.13")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine without any Python: its one folder of programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    # Whatever the script misses here is installed at once.
    (folder / "apt-get").write_text("#!/bin/sh\n")
    (folder / "apt-get").chmod(0o755)
    return folder


def fake_python(path: Path, version: str) -> None:
    """What answers as a Python of that version does to the questions of the script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    major, minor = version.rstrip("t").split(".")
    path.write_text(
        f"#!{sys.executable}\n"
        "import sys, sysconfig\n"
        "really, threaded = sysconfig.get_config_var, 'Py_GIL_DISABLED'\n"
        f"known = {{threaded: {int(version.endswith('t'))}}}\n"
        "sysconfig.get_config_var = lambda name: known[name] if name in known else really(name)\n"
        f"sys.version_info, sys.executable = ({major}, {minor}, 0), {str(path)!r}\n"
        "code, sys.argv = (sys.stdin.read(), sys.argv[1:]) if sys.argv[1] == '-' else"
        " (sys.argv[2], [])\n"
        "exec(code)\n"
    )
    path.chmod(0o755)


def chosen(machine: Path) -> list[str]:
    """What the script says before it begins, then what it would run on, oldest first."""
    head, found, _ = RUN.read_text(encoding="utf-8").partition("rm -rf .venv ")
    assert found
    script = machine.parent / "checkout" / ".ci" / "run"
    script.parent.mkdir(parents=True)
    script.write_text(head + 'printf "%s\\n" "${pythons[@]}" "${new_pythons[@]/#/new }"\n')
    shutil.copy(RUN.parents[1] / "pyproject.toml", script.parents[1])
    done = subprocess.run(
        [machine / "bash", script],
        env={"PATH": str(machine), "HOME": str(machine.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line.strip()]


def missing(version: str) -> str:
    return f"Python {version} is not on this machine: nothing is run on it"


def test_one_python_is_enough(machine: Path) -> None:
    fake_python(machine / "python3", "3.11")
    assert chosen(machine) == [
        *(missing(version) for version in PROMISED if version != "3.11"),
        "+ Python 3.11 runs all tests",
        f"3.11 {machine / 'python3'}",
    ]


def test_a_python_that_is_newer_than_all_that_are_promised(machine: Path) -> None:
    fake_python(machine / "python3", "3.99")
    assert chosen(machine) == [
        *map(missing, PROMISED),
        "+ Python 3.99 runs all tests",
    ]


def test_names_on_the_path_and_what_pyenv_has(machine: Path) -> None:
    versions = machine.parent / ".pyenv" / "versions"
    older, newer = versions / "3.12.9/bin/python", versions / "3.12.10/bin/python"
    fake_python(older, "3.12")
    fake_python(newer, "3.12")
    fake_python(machine / "python3", "3.11")
    fake_python(machine / "python3.13", "3.13")
    # A shim of pyenv, whose version is not chosen.
    (machine / "python3.12").write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    (machine / "python3.12").chmod(0o755)
    assert chosen(machine) == [
        "+ Python 3.11 runs all tests",
        f"3.11 {machine / 'python3'}",
        f"3.12 {newer}",
        f"3.13 {machine / 'python3.13'}",
    ]


def test_newer_pythons_are_tried_and_not_promised(machine: Path) -> None:
    versions = machine.parent / ".pyenv" / "versions"
    free_threaded = versions / "3.14.1t/bin/python"
    fake_python(free_threaded, "3.14t")
    fake_python(machine / "python3", "3.11")
    fake_python(machine / "python3.15", "3.15")
    assert chosen(machine)[-3:] == [
        f"3.11 {machine / 'python3'}",
        f"new 3.15 {machine / 'python3.15'}",
        f"new 3.14t {free_threaded}",
    ]


def test_what_newer_pythons_say_is_told_at_the_end(tmp_path: Path) -> None:
    told = "told_of_new='    Python 3.14: the quick tests pass\n'"
    status, lines = ended(tmp_path, GOOD, more=told)
    assert status == 0
    assert lines[-3:-1] == [
        "+ Pythons for which nothing is claimed:",
        "    Python 3.14: the quick tests pass",
    ]


def ended(
    folder: Path, tests: str, *, campaigns: str = "", limit: int = 3300, more: str = ""
) -> tuple[int, list[str]]:
    """The exit code and output of the last part of the script, which runs these tests."""
    _, found, tail = RUN.read_text(encoding="utf-8").partition("# -- the tests")
    assert found
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (programs / "pytest").write_text(f'#!/bin/sh\nexec {sys.executable} -m pytest "$@"\n')
    (programs / "pytest").chmod(0o755)
    (folder / "test_these.py").write_text(tests)
    (folder / "setup.cfg").write_text("[tool:pytest]\nmarkers = long\n")
    settings = (
        "test_command='true && .venv/bin/pytest'\nextras_command='.venv/bin/pytest -k good'\n"
        f"limit={limit}\ncampaigns=({campaigns})\n{more}\n"
    )
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{settings}#{tail}"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


GOOD = "def test_good(): pass\n"
# Fails the first time only.
RARE = """
import pathlib
def test_rare():
    again = pathlib.Path(__file__).with_name("again")
    assert again.exists() or again.touch(), "a rare moment"
"""
BAD = "def test_bad(): assert not 'broken'\n"


def test_what_fails_once_is_told_and_has_a_second_chance(tmp_path: Path) -> None:
    status, lines = ended(tmp_path, GOOD + RARE)
    assert status == 0
    assert any("AssertionError: a rare moment" in line for line in lines)
    again = lines.index("+ 1 failed, and run once more, alone")
    assert "1 failed, 1 passed" in lines[again - 1]
    assert lines[-3:-1] == ["+ Needed a second chance:", "    test_these.py::test_rare"]
    assert "= 1 passed in " in lines[-1]


def test_what_fails_twice_is_red(tmp_path: Path) -> None:
    status, lines = ended(tmp_path, GOOD + RARE + BAD)
    assert status == 1
    assert "+ Needed a second chance:" in lines
    assert "1 failed, 1 passed" in lines[-1]


def test_many_that_fail_are_red_at_once(tmp_path: Path) -> None:
    many = "".join(BAD.replace("test_bad", f"test_bad_{number}") for number in range(21))
    status, lines = ended(tmp_path, GOOD + many)
    assert status == 1
    assert "21 failed, 1 passed" in lines[-1]
    assert "+ Needed a second chance:" not in lines


def test_tests_that_cannot_be_read_are_red_at_once(tmp_path: Path) -> None:
    status, lines = ended(tmp_path, GOOD + "import nothing_of_that_name\n")
    assert status != 0
    assert "once more" not in "".join(lines) or "1 error" in lines[-1]


def test_nothing_failed_nothing_is_run_again(tmp_path: Path) -> None:
    status, lines = ended(tmp_path, GOOD)
    assert status == 0
    assert "once more" not in "".join(lines)
    assert "1 passed" in lines[-1]


def test_the_line_of_all_tests_is_the_last_one_after_a_campaign(tmp_path: Path) -> None:
    (tmp_path / "test_more.py").write_text(RARE)
    (tmp_path / "again").touch()
    status, lines = ended(tmp_path, GOOD, campaigns="'1 .venv/bin/pytest -k good test_these.py'")
    assert status == 0
    assert "+ .venv/bin/pytest -k good test_these.py" in lines
    assert "2 passed" in lines[-1]


def test_a_campaign_that_fails_is_red(tmp_path: Path) -> None:
    campaigns = "'1 .venv/bin/pytest --co -q nowhere' '1 .venv/bin/pytest --version'"
    status, lines = ended(tmp_path, GOOD, campaigns=campaigns)
    assert status not in (0, 1)
    assert "+ .venv/bin/pytest --version" not in lines
    assert "nowhere" in "".join(lines)


def test_a_campaign_without_time_is_told(tmp_path: Path) -> None:
    status, lines = ended(tmp_path, GOOD, campaigns="'9 .venv/bin/pytest -k rare'", limit=500)
    assert status == 0
    assert "+ No time is left for: .venv/bin/pytest -k rare" in lines
    assert "1 passed" in lines[-1]


def test_the_command_of_the_readme_makes_its_environment_by_itself() -> None:
    """Nothing else is installed into .venv, so that a package which ``.[test]`` lacks is seen."""
    before, _, _ = RUN.read_text(encoding="utf-8").partition("test_command=")
    assert "rm -rf .venv " in before
    assert ".venv/" not in before and "venv .venv\n" not in before
