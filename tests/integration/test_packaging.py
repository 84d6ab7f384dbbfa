"""What `python -m build` makes: complete, nothing beside it, and enough to run the demo."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import gnsqsync
from tests.support.needs import NoExtra, missing
from tests.support.texts import ROOT

pytestmark = pytest.mark.timeout(300)


def environment() -> dict[str, str]:
    """Without the path that tests of Spark may have set for all processes of this one."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the project as a new checkout has them: building writes beside them."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
    )
    if listed.returncode:
        missing(LookupError("the files to build from are found with git, in a checkout"))
    copy = tmp_path_factory.mktemp("sources")
    for name in listed.stdout.decode().rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    return copy


@pytest.fixture(scope="module")
def built(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was made from it."""
    folder = tmp_path_factory.mktemp("dist")
    said = run(sys.executable, "-m", "build", "--no-isolation", "-o", folder, sources, cwd=sources)
    assert "Package would be ignored" not in said
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


def test_the_index_would_take_both(built: Path) -> None:
    names = sorted(path.name for path in built.iterdir())
    version = gnsqsync.__version__
    assert names == [f"gnsqsync-{version}-py3-none-any.whl", f"gnsqsync-{version}.tar.gz"]
    run(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir(), cwd=built)


def test_the_wheel_has_the_package_and_nothing_beside_it(wheel: Path, sources: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = {
        str(path.relative_to(sources))
        for path in (sources / "gnsqsync").rglob("*")
        if path.is_file() and path.parent.name != "registration"
    }
    assert names == {*package, "pyspark_gnsqsync.py"}


def test_the_wheel_has_nothing_that_does_not_belong_there(wheel: Path) -> None:
    """By the settings in pyproject.toml."""
    judge = Path(sys.executable).with_name("check-wheel-contents")
    if not judge.exists():
        missing(NoExtra("check-wheel-contents", "audit"))
    assert run(judge, wheel, cwd=ROOT).strip().endswith("OK")


def test_the_sdist_has_changes_docs_and_tests(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("CHANGES.rst", "docs/index.rst", "docs/conf.py", "tests/__init__.py"):
        assert name in names
    assert not [name for name in names if name.startswith("docs/_build")]
    assert not [name for name in names if "__pycache__" in name]


def test_metadata_that_the_index_shows(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        shown = message_from_bytes(archive.read(name))
    text = str(shown.get_payload())
    assert "All guides with a sentence" in text
    assert "<docs/" not in text and "<CHANGES" not in text, "a link that leads nowhere"
    frameworks = [each for each in shown.get_all("Classifier", []) if "Framework" in each]
    assert "Framework :: Flask" in frameworks and "Framework :: Django" in frameworks
    # There is no public address yet.
    assert shown.get_all("Project-URL") is None and shown["Home-page"] is None
    # ``all`` is what its name says, but for what only develops gnsqsync.
    wanted: dict[str, set[str]] = {}
    for line in shown.get_all("Requires-Dist", []):
        requirement, _, extra = line.partition("; extra == ")
        wanted.setdefault(extra.strip('"'), set()).add(requirement)
    for extra in ("cli", "django", "flask", "prometheus", "spark", "spark-s3", "report"):
        assert wanted[extra] <= wanted["all"], extra


def test_the_demo_runs_from_the_wheel_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    # By the pip of this environment, and not compiled: most of it is not run.
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-compile"]
    pip += ["--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*pip, f"{wheel}[cli]"], env=environment(), capture_output=True, text=True, timeout=240
    )
    if done.returncode and "No matching distribution" in done.stderr:
        missing(LookupError(f"no package index: {done.stderr}"))
    assert done.returncode == 0, done.stderr
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    where = run(python, "-c", "import gnsqsync; print(gnsqsync.__file__)", cwd=elsewhere)
    assert str(tmp_path / "venv") in where
    said = run(tmp_path / "venv" / "bin" / "gnsqsync", "demo", "--messages", "200", cwd=elsewhere)
    assert "200" in said
    assert list(elsewhere.iterdir()) == []
