"""Pages whose claims name the tests that show them; knows how they name them, not what for."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.support.texts import ROOT


def numbered_rows(page: Path) -> list[list[str]]:
    """The cells of the rows that begin with a number."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return [line.strip().split(" | ") for line in lines if re.match(r"   \d+ \|", line)]


def check_named_tests(cell: str) -> None:
    """AssertionError when it names no test, or one that there is not."""
    names = re.findall(r"``(tests/.+?)``", cell)
    assert names, "nothing shows it"
    for name in names:
        check_test_exists(name)


def check_test_exists(name: str) -> None:
    """AssertionError when it is not the name of a test, or of a scenario.

    As ``tests/folder/test_file.py::test_name``, or
    ``tests/simulation/scenarios_subject.py::scenario_name``.
    """
    path, _, function = name.partition("::")
    assert re.fullmatch(r"tests/(\w+/)+test_\w+\.py|tests/simulation/scenarios_\w+\.py", path), name
    assert (ROOT / path).is_file(), name
    assert function in functions_of(path), name


@cache
def functions_of(path: str) -> set[str]:
    """The test functions of a file, those in classes as ``Class::test``; or its scenarios."""
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
