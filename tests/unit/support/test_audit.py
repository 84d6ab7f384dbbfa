"""What the audit of dependencies makes red, and what not."""

from __future__ import annotations

from typing import Any

from tests.support.audit import dependencies, report


def entry(name: str, *ids: str) -> dict[str, Any]:
    return {
        "name": name,
        "version": "1.0",
        "vulns": [{"id": id, "fix_versions": ["1.1"], "aliases": []} for id in ids],
    }


def test_a_finding_in_a_dependency_fails() -> None:
    lines, status = report([entry("Requests", "PYSEC-1"), entry("gevent")], {"requests"})
    assert status == 1
    assert lines == [
        "Requests 1.0, a dependency: PYSEC-1, fixed in 1.1",
        "pip-audit: 2 packages checked, 1 findings",
    ]


def test_a_finding_in_a_tool_is_told() -> None:
    lines, status = report([entry("pip", "PYSEC-1")], {"requests"})
    assert status == 0
    assert "pip 1.0, a tool of the tests: PYSEC-1" in lines[0]


def test_no_answer_is_told_and_fails_nothing() -> None:
    lines, status = report(None, {"requests"})
    assert status == 0
    assert "cannot be reached" in lines[0]


def test_the_dependencies_of_dependencies_count() -> None:
    found = dependencies()
    assert {"gevent", "requests", "urllib3", "click"} <= found
    assert not {"pytest", "hypothesis", "bandit", "gnsqsync"} & found
