"""The benchmark command: it runs, counts what it says it counts, and tells when something failed.

No figure is judged here; how fast anything is depends on the machine.
"""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench import clients, report, rows
from tests.bench.cells import Sample
from tests.bench.runners import rawnsq

ROOT = Path(__file__).parents[2]
HEARTBEAT = b"\x00\x00\x00\x0f\x00\x00\x00\x00_heartbeat_"


# The benchmark measures on the real nsqd only; where there is none these tests are skipped.
REAL = pytest.mark.parametrize("server_kind", ["real"])


def have_ours() -> bool:
    return all(importlib.util.find_spec(f"gnsqsync.{name}") for name in ("reader", "writer"))


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.bench", "--no-pin", "--rounds=1", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )


@REAL
def test_every_row_of_floor_and_ours(server_kind: str, tmp_path: Path) -> None:
    names = ["ours", "floor"] if have_ours() else ["floor"]
    out = tmp_path / "out.json"
    ran = bench("--messages=160", f"--clients={','.join(names)}", f"--json={out}")
    assert ran.returncode == 0, ran.stdout + ran.stderr

    found: dict[str, Any] = json.loads(out.read_text())
    measured = {(s["row"], s["client"]): s for s in found["samples"]}
    assert set(measured) == {(row.name, name) for row in rows.ROWS for name in names}
    for (row_name, _), sample in measured.items():
        assert sample["messages"] == (200 if row_name == "publish-many" else 160)
        assert sample["wall"] > 0 and sample["user"] + sample["system"] >= 0
    assert found["failures"] == []
    assert found["machine"]["nsqd"].startswith("nsqd v")
    for row in rows.ROWS:
        assert f"{row.name}: {row.title}" in ran.stdout


@REAL
def test_a_cell_without_a_figure_is_told(server_kind: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    ran = bench(
        "--messages=160",
        "--clients=floor",
        "--only=publish-1",
        "--cell-timeout=0.001",
        f"--json={out}",
    )
    assert ran.returncode == 2
    assert "publish-16 floor failed: no end within 0.001 s" in ran.stderr
    assert "failed" in ran.stdout
    failed = [failure["row"] for failure in json.loads(out.read_text())["failures"]]
    assert failed == ["publish-1", "publish-16"]


@pytest.mark.parametrize("argument", ["--only=nothing", "--clients=nobody", "--rounds=0"])
def test_a_wrong_option_is_refused(argument: str) -> None:
    assert bench(argument).returncode == 2


def sample(client: str, number: int, wall: float, user: float) -> Sample:
    return Sample("consume-1", client, number, 1000, wall, user, 0.001, 0.002, 0)


def test_medians_spread_and_ratios() -> None:
    samples = [sample("floor", n, 0.5, user) for n, user in enumerate([0.001, 0.003, 0.009])]
    samples += [sample("gnsq", n, 1.0, user) for n, user in enumerate([0.029, 0.039, 0.019])]
    floor, gnsq = report.summary(samples, rows.select(["consume-1"]))
    assert floor["micros"] == pytest.approx({"median": 4.0, "min": 2.0, "max": 10.0})
    assert gnsq["rate"] == pytest.approx({"median": 1000.0, "min": 1000.0, "max": 1000.0})
    assert gnsq["server_micros"]["median"] == pytest.approx(2.0)
    assert gnsq["cpu_ratio"] == pytest.approx({"floor": 7.5, "gnsq": 1.0})
    assert floor["rate_ratio"] == pytest.approx({"floor": 1.0, "gnsq": 2.0})


def test_rows_and_clients_are_chosen_by_name() -> None:
    assert [r.name for r in rows.select(["consume-2", "publish-1"])] == [
        "publish-1",
        "publish-16",
        "consume-200",
        "consume-2500",
    ]
    assert [c.name for c in clients.select(["gnsq", "floor"])] == ["floor", "gnsq"]
    assert "floor-real" not in [c.name for c in clients.select([])]


def test_message_counts_fit_the_callers_and_the_queue() -> None:
    (many,) = rows.select(["publish-many"])
    (shared,) = rows.select(["publish-16"])
    assert many.whole(149) == 100 and many.whole(1) == 100
    assert shared.whole(100) == 96
    for row in rows.ROWS:
        most = row.whole(10**9)
        assert most + row.warmup + row.surplus <= 1_000_000
        assert most % (row.callers * row.batch) == 0


@pytest.mark.parametrize(
    "parts",
    [
        [rawnsq.OK * 3],
        [rawnsq.OK[:4], rawnsq.OK[4:] + rawnsq.OK * 2],
        [rawnsq.OK + HEARTBEAT + rawnsq.OK[:3], rawnsq.OK[3:] + rawnsq.OK],
        [HEARTBEAT[:9], HEARTBEAT[9:] + rawnsq.OK * 2, rawnsq.OK],
        [rawnsq.OK * 3 + HEARTBEAT],
    ],
)
def test_the_floor_counts_its_answers(parts: list[bytes]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for part in parts[1:]:
            theirs.sendall(part)
        rawnsq.read_oks(ours, 3, parts[0])
        beats = b"".join(parts).count(HEARTBEAT)
        theirs.setblocking(False)
        if beats:
            assert theirs.recv(100) == b"NOP\n" * beats
        else:
            with pytest.raises(BlockingIOError):
                theirs.recv(100)


@pytest.mark.parametrize(
    "answer",
    [b"\x00\x00\x00\x0d\x00\x00\x00\x01E_INVALID", rawnsq.OK * 4, rawnsq.OK * 2 + HEARTBEAT[:4]],
)
def test_the_floor_refuses_other_answers(answer: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.close()
        with pytest.raises(rawnsq.Refused):
            rawnsq.read_oks(ours, 3, answer)
