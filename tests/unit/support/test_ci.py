"""What .ci/run decides: which Pythons it takes, and what happens when a test fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[3] / ".ci" / "run"
TOOLS = ("bash", "dirname", "ls", "sed", "sort")
PROMISED = ("3.11", "3.12", "3.13", "3.14")


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
        "option, code = sys.argv[1:3] if sys.argv[1] != '-' else ('-c', sys.stdin.read())\n"
        "sys.argv, sys.path[0] = sys.argv[1:], ''\n"
        "exec(f'import {code}' if option == '-m' else code)\n"
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
        "+ Python 3.11 runs the README's command",
        f"3.11 {machine / 'python3'}",
    ]


def test_a_python_that_is_newer_than_all_that_are_promised(machine: Path) -> None:
    fake_python(machine / "python3", "3.99")
    assert chosen(machine) == [
        *map(missing, PROMISED),
        "+ Python 3.99 runs the README's command",
    ]


def test_names_on_the_path_and_what_pyenv_has(machine: Path) -> None:
    versions = machine.parent / ".pyenv" / "versions"
    older, newer = versions / "3.12.9/bin/python", versions / "3.12.10/bin/python"
    fake_python(older, "3.12")
    fake_python(newer, "3.12")
    fake_python(machine / "python3", "3.11")
    fake_python(machine / "python3.13", "3.13")
    fake_python(machine / "python3.14", "3.14")
    # A shim of pyenv, whose version is not chosen.
    (machine / "python3.12").write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    (machine / "python3.12").chmod(0o755)
    assert chosen(machine) == [
        "+ Python 3.11 runs the README's command",
        f"3.11 {machine / 'python3'}",
        f"3.12 {newer}",
        f"3.13 {machine / 'python3.13'}",
        f"3.14 {machine / 'python3.14'}",
    ]


def test_a_go_module_has_the_newest_python(machine: Path) -> None:
    fake_python(machine / "python3", "3.11")
    module = machine.parent / "checkout" / "tests" / "support" / "python314.py"
    module.parent.mkdir(parents=True)
    module.write_text("print('/unpacked/python3')\n")
    assert chosen(machine)[-1] == "3.14 /unpacked/python3"


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


def parts_of(machine: Path) -> list[str]:
    """What the script would run after it has made the first environment, in its order."""
    text = RUN.read_text(encoding="utf-8")
    pythons = chosen(machine)
    head = [line for line in pythons if line.partition(" ")[0] in PROMISED]
    usual = next(line.split()[2] for line in pythons if "README's command" in line)
    _, found, middle = text.partition("# What is always run")
    assert found
    middle, found, _ = middle.partition("# -- the tests")
    assert found
    newest = head[-1].partition(" ")[2] if head else "python3"
    settings = (
        f"usual={usual} newest={newest} test_command=README pure=PURE\n"
        f"pythons=({' '.join(map(repr, head))})\n"
    )
    printed = 'printf "%s\\n" "${parts[@]}" "${campaigns[@]/#/campaign: }"\n'
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{settings}#{middle}\n{printed}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.replace(f"{machine}/", "").splitlines()


EXTRAS = "-e '.[test,spark,spark-s3,spark-test]'"
README = "the first ring on Python {}, by the README's command|README"
ALL = "GNSQSYNC_TEST_EXTRAS=all"
SECOND = f"the second ring|{ALL} .venv-extras/bin/pytest -n 5 -m system --durations 20"


CORE = ",".join(
    f"gnsqsync/{room}/*"
    for room in ("connection", "reader", "writer", "policy", "wire", "discovery", "http")
)


def on_newest(folder: str, counts: str = "") -> list[str]:
    """The parts that run in the environment of the newest Python."""
    return [
        "the first ring on the newest Python, and what it covers|"
        f"{ALL} {counts}{folder}/bin/pytest -q --cov &&",
        f"        {folder}/bin/coverage report --format=total --fail-under=90 --include='{CORE}'",
        f"calls that exceptions strike|{folder}/bin/pytest -q -m 'first and struck'",
    ]


def on_spark(python: str) -> list[str]:
    return [
        f"campaign: 9 environment {python} .venv-spark {EXTRAS} 'pyspark==4.0.*' 'deltalake>=1' &&",
        "            .venv-spark/bin/python -m tests.spark.maven --here &&",
        "            .venv-spark/bin/pytest -q -m system tests/spark/test_round_trip.py",
    ]


CAMPAIGNS = [
    "campaign: 7 .venv-extras/bin/pytest -m campaign tests/simulation tests/fuzz",
    "campaign: 8 .venv-extras/bin/pytest -n 0 -m campaign tests/chaos/test_once.py",
    "campaign: 30 .venv-extras/bin/pytest -m campaign",
]


def test_first_ring_on_oldest_and_newest_pure_part_on_the_others(
    machine: Path,
) -> None:
    fake_python(machine / "python3", "3.11")
    fake_python(machine / "python3.12", "3.12")
    fake_python(machine / "python3.13", "3.13")
    assert parts_of(machine) == [
        README.format("3.11"),
        "a part of the first ring on Python 3.12|environment python3.12 .venv-3.12 -e '.[test]' &&",
        "            .venv-3.12/bin/pytest -q PURE",
        f"an environment of Python 3.13|environment python3.13 .venv-3.13 {EXTRAS}",
        *on_newest(".venv-3.13"),
        SECOND,
        "campaign: 4 .venv-3.13/bin/pytest -q -m 'system and integrations' tests/integration",
        *on_spark("python3.13"),
        *CAMPAIGNS,
    ]


def test_readme_command_on_newest_python_first_ring_on_oldest(
    machine: Path,
) -> None:
    fake_python(machine / "python3.11", "3.11")
    fake_python(machine / "python3", "3.13")
    assert parts_of(machine) == [
        README.format("3.13"),
        "the first ring on Python 3.11|environment python3.11 .venv-3.11 -e '.[test]' &&",
        "            .venv-3.11/bin/pytest -q",
        *on_newest(".venv-extras"),
        SECOND,
        *on_spark("python3"),
        *CAMPAIGNS,
    ]


def test_a_python_that_tells_coverage_of_branches(machine: Path) -> None:
    fake_python(machine / "python3", "3.13")
    fake_python(machine / "python3.14", "3.14")
    counts = "COVERAGE_CORE=sysmon COVERAGE_CONCURRENCY=thread "
    part = on_newest(".venv-3.14", counts)[0]
    assert part in parts_of(machine)


def test_an_unpromised_python_runs_the_command_of_the_readme(
    machine: Path,
) -> None:
    fake_python(machine / "python3", "3.99")
    assert parts_of(machine) == [
        README.format("3.99"),
        *on_newest(".venv-extras"),
        SECOND,
        *CAMPAIGNS,
    ]


def ended(
    folder: Path,
    tests: str,
    *,
    parts: str = "",
    campaigns: str = "",
    limit: int = 3300,
    more: str = "",
    unsure: str = "",
) -> tuple[int, list[str]]:
    """The exit code and output of the last part of the script, which runs these tests."""
    text = RUN.read_text(encoding="utf-8")
    _, found, tail = text.partition("# -- the tests")
    assert found
    _, found, notes = text.partition("\ntimings=()")
    assert found
    notes = "timings=()" + notes.partition("\n}\n")[0] + "\n}\n"
    for name in (".venv", ".venv-extras"):
        (folder / name / "bin").mkdir(parents=True)
    pytest_ = folder / ".venv" / "bin" / "pytest"
    pytest_.write_text(f'#!/bin/sh\nexec {sys.executable} -m pytest "$@"\n')
    python = folder / ".venv-extras" / "bin" / "python"
    # It is asked for nothing but the tests that are unsure for too long.
    python.write_text(f"#!/bin/sh\nprintf '{unsure}'\n")
    for program in (pytest_, python):
        program.chmod(0o755)
    (folder / "test_these.py").write_text(tests)
    (folder / "setup.cfg").write_text("[tool:pytest]\naddopts = -ra\n")
    settings = (
        "test_command='true && .venv/bin/pytest test_these.py'\n"
        f'limit={limit} parts=("the README|$test_command" {parts})\n'
        f"campaigns=({campaigns})\n{more}\n"
    )
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{notes}{settings}#{tail}"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


GOOD = "def test_good(): pass\n"
BAD = "def test_bad(): assert not 'broken'\n"
AGAIN = "'.venv/bin/pytest -k good test_these.py'"


def test_all_that_passes_is_green(tmp_path: Path) -> None:
    """The last line is that of the README's command, whatever comes behind it."""
    two = "def test_good(): pass\ndef test_other(): pass\n"
    status, lines = ended(tmp_path, two, parts=AGAIN, campaigns="'1 .venv/bin/pytest -k other'")
    assert status == 0
    assert "+ .venv/bin/pytest -k good test_these.py" in lines
    assert "+ .venv/bin/pytest -k other" in lines
    assert "= 2 passed in " in lines[-1]
    assert not any("Failed" in line for line in lines)


def test_each_part_is_told_beside_the_minutes_that_are_kept(tmp_path: Path) -> None:
    (tmp_path / "CONTRIBUTING.rst").write_text("the README       2.5\nthe README and more  9\n")
    more = "timings+=('65|the pages')"
    status, lines = ended(tmp_path, GOOD, more=more)
    assert status == 0
    told = lines.index("+ Minutes that each part took, and those that CONTRIBUTING.rst keeps:")
    assert lines[told + 1].split() == ["1.0", "the", "pages"]
    assert lines[told + 2].split()[1:] == ["2.5", "the", "README"]


def test_a_failed_test_is_red_and_named_and_not_run_again(tmp_path: Path) -> None:
    status, lines = ended(tmp_path, GOOD + BAD, campaigns=AGAIN)
    assert status == 1
    assert lines[-3] == "+ Failed: true && .venv/bin/pytest test_these.py"
    assert lines[-2].startswith("    FAILED test_these.py::test_bad - ")
    assert "1 failed, 1 passed" in lines[-1]
    assert sum(line.startswith("collected ") for line in lines) == 1


# Fails when it is run for the first time.
ONCE = """
import pathlib
def test_once():
    seen = pathlib.Path("seen")
    known = seen.exists()
    seen.touch()
    assert known
"""


@pytest.mark.parametrize("ring", ["first", "system", "campaign"])
def test_one_failure_is_red_in_each_ring(tmp_path: Path, ring: str) -> None:
    part = f"'.venv/bin/pytest -m {ring} test_these.py'"
    tests = GOOD + f"import pytest\npytestmark = pytest.mark.{ring}\n" + ONCE
    # The README's command runs the same file before, and passes.
    (tmp_path / "seen").touch()
    status, lines = ended(tmp_path, tests, parts=f"'rm seen' {part}")
    assert status == 1
    assert lines[-2].startswith("    FAILED test_these.py::test_once - ")
    assert "1 failed, 1 passed" in lines[-1]


def test_the_parts_behind_one_that_fails_are_run_and_the_campaigns_are_not(tmp_path: Path) -> None:
    parts = f"{AGAIN} '.venv/bin/pytest -k bad test_these.py'"
    status, lines = ended(tmp_path, GOOD + BAD, parts=parts, campaigns="'1 touch campaign'")
    assert status == 1
    assert "+ .venv/bin/pytest -k good test_these.py" in lines
    assert not (tmp_path / "campaign").exists()
    failed = [number for number, line in enumerate(lines) if line.startswith("+ Failed: ")]
    assert len(failed) == 2 and failed[-1] == len(lines) - 3
    # Of the first part that failed.
    assert "1 failed, 1 passed" in lines[-1]


def test_tests_that_cannot_be_read_are_red(tmp_path: Path) -> None:
    status, lines = ended(tmp_path, GOOD + "import nothing_of_that_name\n")
    assert status == 2
    assert lines[-2].startswith("    ERROR test_these.py")
    assert "1 error" in lines[-1]


def test_a_part_that_is_no_test_is_red_too(tmp_path: Path) -> None:
    status, lines = ended(tmp_path, GOOD, parts="'echo FAIL Required test coverage; exit 3'")
    assert status == 3
    assert lines[-2] == "    FAIL Required test coverage"


def test_a_campaign_that_fails_is_red(tmp_path: Path) -> None:
    (tmp_path / "test_more.py").write_text(BAD)
    status, lines = ended(tmp_path, GOOD, campaigns="'1 .venv/bin/pytest test_more.py'")
    assert status == 1
    assert lines[-2].startswith("    FAILED test_more.py::test_bad - ")
    assert "= 1 failed in " in lines[-1]


def test_a_campaign_without_time_is_told(tmp_path: Path) -> None:
    status, lines = ended(tmp_path, GOOD, campaigns="'9 .venv/bin/pytest -k rare'", limit=500)
    assert status == 0
    assert "+ No time is left for: .venv/bin/pytest -k rare" in lines
    assert "1 passed" in lines[-1]


def test_warnings_of_newer_pythons_are_shown_at_the_end(tmp_path: Path) -> None:
    told = "told_of_new='    Python 3.15: the pure part passes\n'"
    status, lines = ended(tmp_path, GOOD, more=told)
    assert status == 0
    assert lines[-3:-1] == [
        "+ Pythons for which nothing is claimed:",
        "    Python 3.15: the pure part passes",
    ]


def test_tests_that_are_unsure_for_too_long_are_shown_at_the_end(tmp_path: Path) -> None:
    status, lines = ended(tmp_path, GOOD, unsure="one for 15 days\\ntwo for 20 days\\n")
    assert status == 0
    assert lines[-4:-1] == [
        "+ Unsure for more than fourteen days; make them sure:",
        "    one for 15 days",
        "    two for 20 days",
    ]


def ran_beside(words: str) -> tuple[int, list[str]]:
    """The exit code and output of commands of the script that run beside each other."""
    text = RUN.read_text(encoding="utf-8")
    _, found, functions = text.partition("\nothers=()\n")
    assert found
    functions = "others=()\n" + functions.partition("# Programs that tests run")[0]
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{functions}{words}\necho and then"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_commands_beside_each_other_are_told_in_order() -> None:
    words = "beside seq 2\nbeside echo '*' a\necho first\ntogether\ntogether"
    told = ["first", "+ seq 2", "1", "2", "+ echo * a", "* a", "and then"]
    assert ran_beside(words) == (0, told)


def test_command_that_fails_beside_others_ends_the_run() -> None:
    status, lines = ran_beside("beside sh -c 'echo why >&2; exit 3'\nbeside echo good\ntogether")
    assert status == 1
    assert lines == ["+ sh -c echo why >&2; exit 3: failed", "why", "+ echo good", "good"]


def test_the_command_of_the_readme_makes_its_environment_by_itself() -> None:
    """Nothing else is installed into .venv, so that a package which ``.[test]`` lacks is seen."""
    before, _, _ = RUN.read_text(encoding="utf-8").partition("test_command=")
    assert "rm -rf .venv " in before
    assert ".venv/" not in before and "venv .venv\n" not in before
