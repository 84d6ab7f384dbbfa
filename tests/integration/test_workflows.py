"""The workflows of a public forge: valid, and with the versions and commands of the project."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.support.needs import missing
from tests.support.texts import DOCS, ROOT, project

ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
WORKFLOWS: dict[str, Any] = {path.name: yaml.safe_load(path.read_text("utf-8")) for path in FILES}
JOBS = [(name, job) for name, flow in WORKFLOWS.items() for job in flow["jobs"].values()]
STEPS = [step for _, job in JOBS for step in job.get("steps", ())]


def judged(*files: Path) -> subprocess.CompletedProcess[str]:
    """What actionlint says of them; found, or built by Go."""
    found = shutil.which("actionlint")
    command = [found] if found else ["go", "run", ACTIONLINT]
    if shutil.which(command[0]) is None:
        missing(LookupError("neither actionlint nor Go is installed"))
    done = subprocess.run(
        [*command, "-no-color", *files], cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    if "proxy.golang.org" in done.stderr or "no such host" in done.stderr:
        missing(LookupError(f"actionlint cannot be fetched: {done.stderr}"))
    return done


def test_actionlint_has_nothing_to_say(tmp_path: Path) -> None:
    done = judged(*FILES)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(FILES[0].read_text("utf-8").replace("runs-on:", "run-on:"))
    assert "run-on" in judged(wrong).stdout


def promised() -> list[str]:
    """The Pythons of the classifiers."""
    name = r"Programming Language :: Python :: (3\.\d+)"
    return [found[1] for each in project()["classifiers"] if (found := re.fullmatch(name, each))]


def test_each_python_that_is_promised_is_tested() -> None:
    jobs = WORKFLOWS["tests.yml"]["jobs"]
    assert jobs["first"]["strategy"]["matrix"]["python"] == promised()
    pairs = jobs["integrations"]["strategy"]["matrix"]["include"]
    assert {pair["python"] for pair in pairs} == set(promised())
    for version in {pair["django"] for pair in pairs}:
        assert f"Framework :: Django :: {version}" in project()["classifiers"]
    for step in STEPS:
        version = step.get("with", {}).get("python-version", promised()[0])
        assert version in promised() or version.startswith("${{"), step


def test_only_the_upload_may_do_more_than_read() -> None:
    for name, workflow in WORKFLOWS.items():
        assert workflow["permissions"] == {"contents": "read"}, name
    more = [job for _, job in JOBS if "permissions" in job]
    assert more == [WORKFLOWS["release.yml"]["jobs"]["publish"]]
    (publish,) = more
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["needs"] == ["tests", "build"]
    # It runs no command of ours.
    assert [step for step in publish["steps"] if "run" in step] == []


def test_no_checkout_keeps_its_token_and_no_text_of_others_is_run() -> None:
    for step in STEPS:
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", ""), step


def test_each_job_ends() -> None:
    assert [job for _, job in JOBS if "steps" in job and "timeout-minutes" not in job] == []


def test_packages_that_are_installed_exist() -> None:
    extras = set()
    for step in STEPS:
        for names in re.findall(r"\.\[([\w,-]+)\]", step.get("run", "")):
            extras |= set(names.split(","))
    assert extras and extras <= set(project()["optional-dependencies"])


def test_the_release_has_the_commands_of_the_page() -> None:
    page = (DOCS / "design" / "releasing.rst").read_text("utf-8")
    steps = WORKFLOWS["release.yml"]["jobs"]["build"]["steps"]
    lines = [line for step in steps for line in step.get("run", "").splitlines()]
    for line in lines:
        if line.startswith(("twine", "check-wheel", "cyclonedx-py", "pip --python")):
            assert f"$ {line}\n" in page, line
    assert any("python -m build" in line for line in lines)


def test_checks_are_those_of_ci_run() -> None:
    run = (ROOT / ".ci" / "run").read_text("utf-8")
    for step in WORKFLOWS["tests.yml"]["jobs"]["judges"]["steps"]:
        words = shlex.split(step.get("run", "")) or [""]
        if words[0] in ("ruff", "mypy", "bandit", "codespell", "twine", "check-wheel-contents"):
            assert re.search(rf"^(beside )?\.venv-extras/bin/{words[0]}\b", run, re.MULTILINE), (
                words
            )


def test_the_page_knows_each_workflow() -> None:
    page = (DOCS / "design" / "releasing.rst").read_text("utf-8")
    table = page.split("The workflows\n---")[1]
    assert re.findall(r"^``(\w+\.yml)``", table, re.MULTILINE) == [
        "tests.yml",
        "docs.yml",
        "release.yml",
        "benchmarks.yml",
    ]
    assert (
        {path.name for path in FILES}
        == set(WORKFLOWS)
        == set(re.findall(r"^``(\w+\.yml)``", table, re.MULTILINE))
    )


def test_the_pages_of_each_release_are_built_as_ci_run_builds_them() -> None:
    settings = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text("utf-8"))
    assert settings["version"] == 2 and settings["build"]["tools"]["python"] in promised()
    assert settings["sphinx"]["fail_on_warning"] is True
    assert ROOT / settings["sphinx"]["configuration"] == DOCS / "conf.py"
    (install,) = settings["python"]["install"]
    assert install["extra_requirements"] == ["docs"] and install["path"] == "."
