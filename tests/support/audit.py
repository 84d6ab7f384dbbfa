"""``python -m tests.support.audit``: known vulnerabilities in what gnsqsync installs, by pip-audit.

Exit status 1 for a finding in a dependency of gnsqsync or of an extra for users. Tools of tests and
docs are printed only. Where the advisories cannot be reached that is said, and is no failure.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import Any

# Extras of those who work on gnsqsync, not of those who use it.
_OWN_EXTRAS = {"audit", "docs", "fuzz", "spark-test", "test"}
_SECONDS = 120


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def dependencies(package: str = "gnsqsync") -> set[str]:
    """All that is installed for the package and its users' extras, itself left out."""
    found: set[str] = set()
    waiting = [package]
    while waiting:
        name = waiting.pop()
        for requirement in metadata.requires(name) or ():
            match = re.match(r"[A-Za-z0-9._-]+", requirement)
            extra = re.search(r"""extra\s*==\s*['"]([^'"]+)""", requirement)
            if match is None or (extra and (name != package or extra[1] in _OWN_EXTRAS)):
                continue
            needed = normal(match[0])
            if needed not in found and _is_installed(needed):
                found.add(needed)
                waiting.append(needed)
    return found


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def audit() -> list[dict[str, Any]] | None:
    """pip-audit's entries of what it could look up, None when it could look up nothing."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"]
    command += ["--timeout", "10", "--skip-editable"]
    try:
        out = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        ).stdout
        entries = json.loads(out)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError):
        return None  # without an answer it ends with a traceback
    return [entry for entry in entries if "skip_reason" not in entry] or None


def report(entries: list[dict[str, Any]] | None, ours: Iterable[str]) -> tuple[list[str], int]:
    """(lines to print, exit status)."""
    if entries is None:
        return ["pip-audit: the advisories cannot be reached from here; nothing was checked"], 0
    lines, status = [], 0
    known = set(ours)
    for entry in entries:
        for finding in entry["vulns"]:
            is_ours = normal(entry["name"]) in known
            status |= is_ours
            fixed = ", ".join(finding.get("fix_versions") or ()) or "no version yet"
            whose = "a dependency" if is_ours else "a tool of the tests"
            lines.append(
                f"{entry['name']} {entry['version']}, {whose}: {finding['id']}, fixed in {fixed}"
            )
    lines.append(f"pip-audit: {len(entries)} packages checked, {len(lines)} findings")
    return lines, int(status)


def main() -> int:
    lines, status = report(audit(), dependencies())
    print("\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main())
