"""``nox -l`` lists the sessions. ``nox -s NAME`` runs one. CI runs ``.ci/run``."""

from __future__ import annotations

import shutil
from pathlib import Path

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


@nox.session
def lint(session: nox.Session) -> None:
    """Style and security of the code."""
    session.install("-e", ".[test,audit]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("bandit", "-q", "-c", "pyproject.toml", "-r", "gnsqsync")
    session.run("codespell")


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict on the package; mypy and pyright on calls as users write them."""
    session.install("-e", ".[test]")
    session.run("mypy")
    session.run("pytest", "-q", "-m", "system", "tests/integration/test_user_code.py")


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The first ring of the tests; pass paths behind ``--`` for a part of it."""
    session.install("-e", ".[test]")
    session.run("pytest", *session.posargs)


@nox.session(python=PYTHONS[-1])
def coverage(session: nox.Session) -> None:
    """The first ring, the branches that it does not reach, and the floor."""
    session.install("-e", ".[test,spark,spark-s3,spark-test]")
    counts = {"COVERAGE_CORE": "sysmon", "COVERAGE_CONCURRENCY": "thread"}
    session.run("pytest", "-q", "--cov", *session.posargs, env=counts)


EXTRAS = ".[test,docs,audit,spark,spark-s3,spark-test]"


@nox.session
def system(session: nox.Session) -> None:
    """The second ring: real servers, processes, signals, browsers, Spark, the pages, a release."""
    session.install("-e", EXTRAS, "kubernetes-validate")
    session.env["GNSQSYNC_TEST_EXTRAS"] = "all"
    session.run("pytest", "-m", "system", *session.posargs)


@nox.session(python=PYTHONS)
def integrations(session: nox.Session) -> None:
    """Django, on SQLite and PostgreSQL, and Flask; each Python gets its newest Django."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "django", "--version")
    chosen = "integrations and not campaign"
    session.run("pytest", "-m", chosen, "tests/integration", *session.posargs)


@nox.session
def campaign(session: nox.Session) -> None:
    """The third ring: kills, faults, histories and inputs from new seeds, for minutes each."""
    session.install("-e", EXTRAS)
    session.run("pytest", "-m", "campaign", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The pages, with every warning an error."""
    session.install("-e", ".[docs]")
    session.run("sphinx-build", "-W", "-b", "html", "docs", "docs/_build")


@nox.session
def deploy(session: nox.Session) -> None:
    """The files of the pages on Docker, Kubernetes and systemd; needs systemd-analyze, too."""
    session.install("kubernetes-validate", "-e", ".[test]")
    pages = "tests/integration/test_docs_deploy.py", "tests/integration/test_docs_spark_cluster.py"
    session.run("pytest", "-m", "system", *pages, *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """Mutation tests of wire and policy; behind ``--`` patterns of names, for a part of them."""
    session.install("mutmut==3.8.1", "-e", ".[test]")
    session.run("mutmut", "run", *session.posargs)
    session.run("mutmut", "results")


@nox.session
def build(session: nox.Session) -> None:
    """The files of a release, and the wheel in an environment where nothing else is."""
    session.install("-e", ".[audit]")
    shutil.rmtree("dist", ignore_errors=True)
    session.run("python", "-m", "build")
    files = [str(path) for path in Path("dist").iterdir()]
    session.run("twine", "check", "--strict", *files)
    session.run("check-wheel-contents", *(file for file in files if file.endswith(".whl")))
    (wheel,) = Path("dist").glob("*.whl")
    session.install(f"{wheel}[cli]")
    with session.chdir(session.create_tmp()):  # not the checkout
        session.run("gnsqsync", "demo")
