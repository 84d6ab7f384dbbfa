"""``nox -l`` lists the sessions, ``nox -s NAME`` runs one. ``.ci/run`` is what has to pass."""

from __future__ import annotations

import nox

nox.options.sessions = ["lint", "types", "unit"]
nox.options.reuse_existing_virtualenvs = True
PYTHONS = ["3.11", "3.12", "3.13"]


@nox.session
def lint(session: nox.Session) -> None:
    """Style and security of the code."""
    session.install("-e", ".[test,audit]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("bandit", "-q", "-c", "pyproject.toml", "-r", "gnsqsync")


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict on the package; mypy and pyright on calls as users write them."""
    session.install("-e", ".[test]")
    session.run("mypy")
    session.run("pytest", "-q", "tests/integration/test_user_code.py")


@nox.session(python=PYTHONS)
def unit(session: nox.Session) -> None:
    """The tests without a server: about two minutes."""
    session.install("-e", ".[test]")
    session.run("pytest", "-q", "-n", "auto", "tests/unit", *session.posargs)


@nox.session(name="all", python=PYTHONS)
def all_tests(session: nox.Session) -> None:
    """All tests that this machine can run; pass paths behind ``--`` for a part of them."""
    session.install("-e", ".[test]")
    session.run("pytest", "-n", "auto", "--dist", "loadfile", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The pages, with every warning an error."""
    session.install("-e", ".[docs]")
    session.run("sphinx-build", "-W", "-b", "html", "docs", "docs/_build")
