"""``python -m tests.support.audit``: known vulnerabilities in dependencies, found by pip-audit.

The exit status is 1 for a finding in a dependency of gnsqsync or of an extra for users. Findings in
tools of tests and docs are only printed. If the advisories cannot be reached, a line says so, and
the status is 0.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import Any

# Extras for developers of gnsqsync. Users do not need them.
_OWN_EXTRAS = {"audit", "docs", "fuzz", "spark-test", "test"}
_SECONDS = 120


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def dependencies(package: str = "gnsqsync") -> set[str]:
    """Return the dependencies of the package and of its extras for users."""
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
    """Return pip-audit's entries, or None if it could look up nothing."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"]
    command += ["--timeout", "10", "--skip-editable"]
    try:
        out = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        ).stdout
        entries = json.loads(out)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError):
        return None  # Without an answer pip-audit ends with a traceback.
    return [entry for entry in entries if "skip_reason" not in entry] or None


def report(entries: list[dict[str, Any]] | None, ours: Iterable[str]) -> tuple[list[str], int]:
    """Return (lines to print, exit status)."""
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
