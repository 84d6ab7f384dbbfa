"""``python -m tests.bench.waits``: it measures on real servers, writes what it says, and ends them.

No figure is judged here; how long anything waits depends on the machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# Servers and consumers are processes, which a busy machine starts slowly.
PATIENCE = 180
pytestmark = pytest.mark.timeout(PATIENCE + 30)


@pytest.mark.parametrize("server_kind", ["real"])
def test_rows_beside_an_older_package(server_kind: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "out.json"
    command = [
        *(sys.executable, "-m", "tests.bench.waits", "--row=three,topics", "--peers=ours,before"),
        *(f"--package={ROOT}", "--seconds=1", f"--json={out}", "--docs", f"--folder={tmp_path}"),
    ]
    ran = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    found: dict[str, Any] = json.loads(out.read_text())
    assert found["failed"] == {}, ran.stderr
    assert ran.returncode == any(line[-1] == "missed" for line in found["table"])
    assert found["results"].keys() == {"three", "topics"}
    for figures in found["results"].values():
        assert figures.keys() == {"ours", "before"}
        for value, _ in (figures[peer]["99 %"] for peer in figures):
            assert value > 0
    assert "three nsqds, 5 messages/s each" in ran.stdout
    written = {path.name for path in tmp_path.glob("waits*")}
    assert written == {"waits.txt", "waits.csv", "waits.svg", "waits-dark.svg"}
