"""Pages whose claims name the tests that prove them. Knows the form of names, not the claims."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.support.texts import ROOT


def numbered_rows(page: Path) -> list[list[str]]:
    """Return the cells of the rows that begin with a number."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return [line.strip().split(" | ") for line in lines if re.match(r"   \d+ \|", line)]


def check_named_tests(cell: str) -> None:
    """Raise AssertionError if the cell names no test, or a test that does not exist."""
    names = re.findall(r"``(tests/.+?)``", cell)
    assert names, "nothing shows it"
    for name in names:
        check_test_exists(name)


def check_test_exists(name: str) -> None:
    """Raise AssertionError if no test or scenario has this name.

    Its form is ``tests/folder/test_file.py::test_name`` or
    ``tests/simulation/scenarios_subject.py::scenario_name``.
    """
    path, _, function = name.partition("::")
    assert re.fullmatch(r"tests/(\w+/)+test_\w+\.py|tests/simulation/scenarios_\w+\.py", path), name
    assert (ROOT / path).is_file(), name
    assert function in functions_of(path), name


@cache
def functions_of(path: str) -> set[str]:
    """Return the tests of a file (in a class ``Class::test``), or its scenarios."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return set(functions(tree.body, ""))


def functions(body: list[ast.stmt], prefix: str) -> list[str]:
    names = []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(prefix + node.name)
        elif isinstance(node, ast.ClassDef):
            names += functions(node.body, f"{prefix}{node.name}::")
    return [name for name in names if name.split("::")[-1].startswith(("test_", "scenario_"))]
