"""The rings: each test is in exactly one, each line of the lists names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import marks, workers
from tests.support.pytest_runs import run_pytest

ROOT = Path(__file__).parents[3]
LINES = (*marks._FIRST, *marks._SYSTEM, *marks._CAMPAIGN)
OTHERS = (*marks._REAL, *marks._INTEGRATIONS, *marks._STRUCK, *workers._SESSION_OF)


@pytest.mark.parametrize("line", [*LINES, *OTHERS])
def test_each_entry_names_an_existing_test(line: str) -> None:
    path, _, name = line.partition("::")
    assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file()
    if name:
        function = re.escape(name.partition("[")[0])
        assert re.search(rf"^def {function}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE)


def test_no_line_is_in_two_rings() -> None:
    assert len(LINES) == len(set(LINES))


def test_a_line_names_no_other_test_that_begins_as_it_does() -> None:
    name = "tests/a/test_b.py::test_c[d-e]"
    lines = ["tests/", "tests/a/", "tests/a/test_b.py", "tests/a/test_b.py::test_c", name]
    assert marks.lines_of(name) == lines[::-1]
    assert all(marks.begins(name, {line}) for line in lines)
    assert not marks.begins("tests/a/test_b.py::test_c_too", {"tests/a/test_b.py::test_c"})
    assert not marks.begins(name, {"tests/a/test_b.py::test_c[d]", "tests/a/test_b", "tests/b/"})


def test_the_longest_line_decides_and_real_servers_are_of_the_second_ring() -> None:
    cuts = "tests/chaos/test_scenarios.py::test_nothing_is_lost_and_everything_is_explained"
    assert marks.ring_of(f"{cuts}[cuts]") == "system"
    assert marks.ring_of(f"{cuts}[torn]") == "campaign"
    assert marks.ring_of("tests/unit/test_floors.py::test_it") == "first"
    assert marks.ring_of("tests/integration/test_writer.py::test_it[real]") == "first"
    assert (
        marks.ring_of("tests/integration/test_writer.py::test_it[real]", on_real_servers=True)
        == "system"
    )
    rows = "tests/conformance/test_04_delivery.py::test_it[real]"
    assert marks.ring_of(rows, on_real_servers=True) == "first"
    assert marks.ring_of(rows, on_real_servers=True, waits=True) == "system"
    assert marks.ring_of(rows.replace("04_delivery", "07_time"), on_real_servers=True) == "system"
    assert marks.ring_of(f"{cuts}[torn]", on_real_servers=True) == "campaign"


def rings_of(item: pytest.Item) -> list[str]:
    return [mark.name for mark in item.iter_markers() if mark.name in marks.RINGS]


def test_many_examples_are_of_the_third_ring() -> None:
    examples = "tests/unit/test_x.py::test_it"
    for parameters in ("few", "tls-few", "few-tls", "manyfold", "as many as there are"):
        assert marks.ring_of(f"{examples}[{parameters}]") == "first"
    for parameters in ("many", "tls-many", "many-tls", "tls-many-snappy"):
        assert marks.ring_of(f"{examples}[{parameters}]") == "campaign"
    few, many = marks.few_and_many(3, 40).args[1]
    assert (few.id, few.values, many.id, many.values) == ("few", (3,), "many", (40,))


def test_each_test_has_exactly_one_ring(request: pytest.FixtureRequest) -> None:
    """The rings together are all tests, and no test is run twice."""
    assert [item.nodeid for item in request.session.items if len(rings_of(item)) != 1] == []
    # The hook gives each test one ring, whether it runs or not; nothing else may give it another.
    by_hand = re.compile(rf"^[^\"']*\bmark\.({'|'.join(marks.RINGS)})\b", re.MULTILINE)
    files = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    assert len(files) > 400
    assert [path for path in files if by_hand.search(path.read_text("utf-8"))] == []


def test_the_line_on_the_other_rings() -> None:
    assert marks.line_of({}) == ""
    counts = {"the real nsqd": 1812, "Java": 290, "browsers": 21, "processes": 412, "campaign": 69}
    assert marks.line_of(counts) == (
        "Tests of the other rings that did not run: 1,812 of the real nsqd, 21 of browsers,"
        " 290 of Java, 412 of processes: pytest -m system; 69 campaigns: pytest -m campaign"
    )


@pytest.mark.parametrize("words", [[], ["-p", "xdist", "-n", "2"]], ids=["alone", "two workers"])
def test_a_run_of_the_first_ring_ends_with_it(tmp_path: Path, words: list[str]) -> None:
    """Told once, with workers, too, and before the last line of pytest."""
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['tests.support.marks']\n")
    for file in ("tests/unit/test_a.py", "tests/component/embedded/test_disk_kills.py"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("def test_it(): pass\n")
    markers = "".join(f"    {ring}\n" for ring in marks.RINGS)
    code, output = run_pytest(tmp_path, "-m", "first", *words, settings=f"markers =\n{markers}")
    assert code == 0, output
    *_, line, last = output.splitlines()
    assert line == "Tests of the other rings that did not run: 1 of processes: pytest -m system"
    assert last.startswith("1 passed")
    assert output.count("Tests of the other rings") == 1
