"""``python -m tests.support.installs PYTHON WORDS``: ``pip install WORDS`` for PYTHON, done by uv.

uv installs in seconds what takes pip a minute. uv reads neither the files of pip nor ``PIP_*``, so
it gets those settings as variables of its own. pip does the work where uv is not beside this
Python, where a setting of pip has no variable here, and where uv fails. This module needs nothing
but pip.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

# The variable of uv for a setting of pip.
_VARIABLES = {
    "cert": "SSL_CERT_FILE",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "find-links": "UV_FIND_LINKS",
    "index-url": "UV_DEFAULT_INDEX",
    "timeout": "UV_HTTP_TIMEOUT",
}
# Settings of what pip prints and asks, and of the file from which it has read the others.
_NO_MATTER = {
    "config-file",
    "disable-pip-version-check",
    "no-color",
    "no-input",
    "no-python-version-warning",
    "progress-bar",
    "quiet",
    "root-user-action",
    "verbose",
}
# Seconds after which pip takes over.
_PATIENCE = 600


class OnlyPip(Exception):
    """A setting of pip that uv cannot be told. The text names it."""


def settings(listed: str) -> dict[str, str]:
    """Return the settings of ``pip install`` in the lines of ``pip config list``."""
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in found:
            found[section][key] = str(ast.literal_eval(value))
    return found["global"] | found["install"] | found[":env:"]


def variables(pip: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that give uv the settings of pip; those of the user stay."""
    made: dict[str, str] = {}
    for key, value in pip.items():
        if key in _NO_MATTER or not value:
            continue
        if key not in _VARIABLES:
            raise OnlyPip(f"pip's setting {key}")
        made[_VARIABLES[key]] = value
    # requests, by which pip asks, reads these.
    for name in "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE":
        if value := environ.get(name):
            made.setdefault("SSL_CERT_FILE", value)
    # pip parts places by blanks and leaves out folders that do not exist. uv does neither.
    places = made.pop("UV_FIND_LINKS", "").split()
    made = {name: value for name, value in made.items() if name not in environ}
    kept = [place for place in places if "://" in place or Path(place).exists()]
    if kept:
        own = environ.get("UV_FIND_LINKS")
        made["UV_FIND_LINKS"] = ",".join([own, *kept] if own else kept)
    return made


def by_uv(uv: Path, python: str, words: list[str]) -> str:
    """Install by uv. Return "", or why pip has to do it."""
    if not uv.exists():
        return "uv is not here"
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    try:
        made = variables(settings(listed.stdout), os.environ)
    except OnlyPip as only:
        return f"uv cannot be told {only}"
    # Compiled at once, as pip does: else each worker of pytest compiles all that it imports.
    command = [str(uv), "pip", "install", "-q", "--compile-bytecode", "--python", python, *words]
    try:
        status = subprocess.run(
            command, env={**os.environ, **made}, timeout=_PATIENCE, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return f"uv took more than {_PATIENCE} s"
    return f"uv ended with status {status}" if status else ""


def main(python: str, *words: str) -> int:
    reason = by_uv(Path(sys.executable).with_name("uv"), python, list(words))
    if not reason:
        return 0
    print(f"{reason}: pip installs", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "--python", python, "install", "-q", *words]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
