"""The package as users install it: a wheel in a folder of its own, which Spark finds."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.servers import ROOT


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel installs, without dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    # A build in the checkout would leave its traces there.
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.rst", "LICENSE"):
        (source / name).write_bytes((ROOT / name).read_bytes())
    (source / "gnsqsync").symlink_to(ROOT / "gnsqsync")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", folder, source], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(code: str, site: Path, **environment: str) -> str:
    """What a Python of its own prints that has the wheel first on its path."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(site), **environment},
        cwd=site.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_wheel_has_one_more_module_at_the_top(installed: Path) -> None:
    names = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"gnsqsync", "pyspark_gnsqsync.py"}


def test_spark_finds_the_format_without_registering(installed: Path, pyspark: ModuleType) -> None:
    """By the very steps of Spark's own look-up; a session would take ten seconds more."""
    code = """
from pkgutil import iter_modules
from importlib import import_module
from pyspark.sql.datasource import DataSource
names = [info.name for info in iter_modules() if info.name.startswith("pyspark_")]
source = import_module(names[0]).DefaultSource
assert issubclass(source, DataSource)
print(names, source.name(), source.__module__)
"""
    assert run(code, installed) == "['pyspark_gnsqsync'] nsq gnsqsync.spark.source"


def test_without_pyspark_nothing_breaks_and_one_sentence_tells(installed: Path) -> None:
    code = """
import sys
sys.modules["pyspark"] = None
import gnsqsync, gnsqsync.spark, pyspark_gnsqsync
assert not hasattr(pyspark_gnsqsync, "DefaultSource")
try:
    from gnsqsync.spark import NsqDataSource
except ImportError as error:
    print(error)
"""
    assert run(code, installed).endswith('pip install "gnsqsync[spark]"')


def test_importing_gnsqsync_loads_neither_spark_nor_arrow(installed: Path) -> None:
    code = """
import sys, gnsqsync, gnsqsync.spark, gnsqsync.spark.plan, gnsqsync.spark.options
print(sorted(set(sys.modules) & {"pyspark", "pyarrow", "fsspec", "matplotlib"}))
"""
    assert run(code, installed) == "[]"
