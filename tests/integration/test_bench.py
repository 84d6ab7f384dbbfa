"""The benchmark command: it runs, counts what it says it counts, and tells when something failed.

No figure is judged here; how fast anything is depends on the machine.
"""

from __future__ import annotations

import csv
import json
import socket
import subprocess
import sys
import threading
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.bench import (
    clients,
    counts,
    environments,
    kernel,
    memory,
    pages,
    pictures,
    profiles,
    publishers,
    ramp,
    report,
    rows,
    scale,
)
from tests.bench.cells import Bench, Failed, Layout, Plan, Sample, check_delivered
from tests.bench.progress import Progress
from tests.bench.runners import measure, rawnsq
from tests.bench.server import Server, find

ROOT = Path(__file__).parents[2]
HEARTBEAT = b"\x00\x00\x00\x0f\x00\x00\x00\x00_heartbeat_"


# The benchmark measures on the real nsqd only; where there is none these tests are skipped.
REAL = pytest.mark.parametrize("server_kind", ["real"])
# Seconds for a run of the benchmark: each cell is a process or two, which a busy machine starts
# slowly.
PATIENCE = 500
pytestmark = pytest.mark.timeout(PATIENCE + 60)


def bench(
    *arguments: str, layout: tuple[str, ...] = ("--no-pin",)
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.bench", *layout, "--rounds=1", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@REAL
def test_every_row_of_floor_and_ours(server_kind: str, tmp_path: Path) -> None:
    names = ["ours", "floor"]
    out = tmp_path / "out.json"
    ran = bench("--messages=160", f"--clients={','.join(names)}", f"--json={out}")
    assert ran.returncode == 0, ran.stdout + ran.stderr

    found: dict[str, Any] = json.loads(out.read_text())
    measured = {(s["row"], s["client"]): s for s in found["samples"]}
    chosen = clients.select(names)
    assert set(measured) == {(r.name, c.name) for r in rows.ROWS for c in chosen if c.can(r)}
    for (row_name, _), sample in measured.items():
        assert sample["messages"] == (200 if row_name == "publish-many" else 160)
        assert sample["wall"] > 0 and sample["user"] + sample["system"] >= 0
        assert sample["server_reads"] >= 0 and sample["stop_kib"] >= sample["imports_kib"] > 0
        assert len(sample["latencies"]) == (160 if row_name.startswith("latency") else 0)
    assert found["failures"] == []
    assert found["machine"]["nsqd"].startswith("nsqd v")
    for row in rows.ROWS:
        assert f"{row.name}: {row.title}" in ran.stdout


@REAL
def test_gevent_and_both_layouts(server_kind: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    ran = bench(
        "--messages=160",
        "--only=publish-1,consume-2500",
        "--clients=ours-gevent,floor-gevent",
        f"--json={out}",
        layout=(),
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(out.read_text())
    cells = {(s["layout"], s["row"], s["client"]) for s in found["samples"]}
    assert cells == {
        (layout["name"], row, name)
        for layout in found["layouts"]
        for row in ("publish-1", "publish-16", "consume-2500-workers", "consume-2500")
        for name in ("ours-gevent", "floor-gevent")
    }


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
    assert "hangs" in ran.stdout
    failed = [(f["row"], f["state"]) for f in json.loads(out.read_text())["failures"]]
    assert failed == [("publish-1", "hangs"), ("publish-16", "hangs")]


def test_messages_that_were_delivered_before_the_measured_time() -> None:
    names = [field.name for field in fields(measure.Order)]
    order = measure.Order(**{**dict.fromkeys(names), "kind": "consume"})
    check_delivered(order, {"messages": 60_000, "server": 0.08})
    with pytest.raises(Failed, match="60,000 messages were counted while"):
        check_delivered(order, {"messages": 60_000, "server": 0.001})


@REAL
def test_ramp_scale_and_what_the_docs_are_made_of(
    server_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in (
        (ramp, "STEPS", ((200.0, 20), (5000.0, 200), (200.0, 20))),
        (ramp, "SECONDS", 0.2),
        (ramp, "LOADS", (0.5,)),
        (ramp, "LOAD_MESSAGES", 5000),
        (scale, "COUNTS", (2,)),
        (scale, "CONNECTIONS", (2,)),
        (scale, "TOPICS", (("ours", 2, "throughput"), ("ours-gevent", 2, "adaptive"))),
        (scale, "PROCESSES", (1,)),
        (scale, "SIZES", (10,)),
        (scale, "HANDLER_SECONDS", (1e-3,)),
        (scale, "CONCURRENCY", (1, 2)),
        (scale, "SPREAD_MESSAGES", 12_000),
        (scale, "PROCESS_MESSAGES", 2000),
        (scale, "MOST_OF_A_SIZE", 20_000_000),
        (scale, "SECONDS", 0.1),
        (counts, "MESSAGES", 2000),
        (memory, "MESSAGES", 5000),
    ):
        monkeypatch.setattr(module, name, value)
    program, free = find(None), Layout("free", None)
    chosen = clients.select(["ours", "floor"])
    needed = clients.select(["ours", "floor", "ours-gevent"])
    commands = {c.name: environments.command_of(c, print) for c in needed}
    names = ("publish-1", "latency-200")
    measured = [row for row in rows.ROWS if row.name in names]
    with Server(program, None) as server:
        bench = Bench({"free": server}, [free], Plan(1, 0.1, 160, 60.0), commands, Progress())
        bench.run(measured, chosen)
        found: dict[str, Any] = report.document(bench, measured)
        found["counts"] = counts.run(bench, Progress())
        found["memory"] = memory.run(bench, Progress())
        found["ramp"] = ramp.run(bench, Progress(), rates=(100, 2000))
        found["publishers"] = publishers.run(bench, Progress(), callers=(2, 8), messages=800)
        found["scale"] = scale.run(bench, program, Progress())
    found["profile"] = [{"row": "publish-1", "client": "ours", "function": "a", "part": 0.5}]
    found["kernel"] = [{"row": "publish-1", "client": "ours", **dict.fromkeys(kernel.TITLES, 1.0)}]
    found["instructions"] = [{"row": "publish-1", "client": "floor", "instructions": 7.0}]
    found["machine"] = {
        **dict.fromkeys(("cpu", "cores", "kernel", "python", "nsqd"), "?"),
        "load_average": [0.0],
        "load_average_after": [0.0],
    }
    found["options"] = {"rounds": 1}
    for point in found["counts"]:
        assert point["received"] >= 2000 and point["sends"] > 0 and point["recvs"] > 0
    parts = {point["part"]: point["mib"] for point in found["memory"]}
    # 2500 messages of 200 bytes wait.
    assert parts["objects"] > parts["gnsqsync/wire/frames.py"] > 2500 * 200 / memory.MIB
    assert memory.table(found["memory"])
    assert [len(mode["series"]) for mode in found["ramp"]["change_over"]] == [45, 45]
    loads = found["ramp"]["loads"]
    assert len(loads) == 4 and all(0 < point["p50_ms"] <= point["p999_ms"] for point in loads)
    assert len(found["publishers"]) == 6 and publishers.table(found["publishers"])
    assert all(point["unfair"] >= 1 for point in found["publishers"])
    assert all(0 < point["p50_ms"] <= point["p99_ms"] for point in found["publishers"])
    busy = [point["busy"] for point in found["scale"]["handlers"] if point["seconds"]]
    assert all(0.1 < share <= 1 for share in busy)
    table = scale.table(found["scale"])
    assert "workers busy" in table and ramp.table(found["ramp"])
    assert "2 connections, on greenlets: " in table

    # The same figures as if they were of the pinned layout, which has the tables.
    for entry in list(found["summary"]):
        found["summary"].append({**entry, "layout": "pinned"})
    pages.write(found, tmp_path)
    with open(tmp_path / "threads.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["Work"] for line in lines if line["goal"]] == [r.title for r in measured if r.goal]
    in_docs = {path.name for path in (ROOT / "docs" / "guides" / "performance").iterdir()}
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {name for name in in_docs if not name.endswith(".png")}
    pytest.importorskip("matplotlib")
    pictures.draw(found, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == in_docs


def test_messages_handled_during_a_look_at_nsqd_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading nsqd's counters lets other workers run, with many threads for most of a cell."""
    looking, looked = threading.Event(), threading.Event()

    def slow_look(pid: int) -> None:
        looking.set()
        assert looked.wait(30)

    monkeypatch.setattr(measure, "server_seconds", slow_look)
    empty = dict.fromkeys((field.name for field in fields(measure.Order)), 0)
    meter = measure.Meter(measure.Order(**{**empty, "warmup": 1, "messages": 3}))
    last = threading.Event()
    handler = measure.counting_handler(meter._order, meter, lambda body: body, last.set)
    workers = [threading.Thread(target=handler, args=(b"",)) for _ in range(2)]
    workers[0].start()
    assert looking.wait(30)
    time.sleep(0.2)  # what the other workers take
    handler(b"")
    handler(b"")
    workers[1].start()
    assert not last.wait(0.1)
    looked.set()
    for worker in workers:
        worker.join()
    assert 0.2 <= meter.result()["wall"] < 0.3


@pytest.mark.parametrize("argument", ["--only=nothing", "--clients=nobody", "--rounds=0"])
def test_a_wrong_option_is_refused(argument: str) -> None:
    assert bench(argument).returncode == 2


def sample(client: str, number: int, wall: float, user: float) -> Sample:
    return Sample("free", "consume-200", client, number, 1000, wall, user, 0.001, 0.002)


def test_medians_spread_and_ratios() -> None:
    samples = [sample("floor", n, 0.5, user) for n, user in enumerate([0.001, 0.003, 0.009])]
    samples += [sample("gnsq", n, 1.0, user) for n, user in enumerate([0.029, 0.039, 0.019])]
    floor, gnsq = report.summary(samples, rows.select(["consume-200"]))
    assert floor["micros"] == pytest.approx({"median": 4.0, "min": 2.0, "max": 10.0})
    assert gnsq["rate"] == pytest.approx({"median": 1000.0, "min": 1000.0, "max": 1000.0})
    assert gnsq["server_micros"]["median"] == pytest.approx(2.0)
    assert gnsq["cpu_ratio"] == pytest.approx({"floor": 7.5, "gnsq": 1.0})
    assert floor["rate_ratio"] == pytest.approx({"floor": 1.0, "gnsq": 2.0})
    assert floor["goal"] is gnsq["goal"] is None


@pytest.mark.parametrize(("times", "reached"), [(1.0, True), (2.25, True), (2.4, False)])
def test_a_goal_is_a_multiple_of_the_floor(times: float, reached: bool) -> None:
    (row,) = rows.select(["consume-200"])
    assert row.goal is not None and 2.25 / 1.1 < row.goal < 2.4 / 1.1
    samples = [sample("floor", 1, 1.0, 0.009), sample("ours", 1, 1.0, 0.010 * times - 0.001)]
    _, ours = report.summary(samples, [row])
    assert ours["reached"] is reached


def test_percentiles() -> None:
    values = list(range(1, 101))
    found = [report.percentile(values, part) for part in (0.0, 0.5, 0.99, 1.0)]
    assert found == [1, 50, 99, 100]
    assert report.percentile([7], 0.99) == 7


def test_rows_and_clients_are_chosen_by_name() -> None:
    assert [r.name for r in rows.select(["consume-2", "publish-1"])] == [
        "publish-1",
        "publish-16",
        "consume-2500-workers",
        "consume-2500",
        "consume-200",
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
        assert most + row.warmup + row.surplus <= 1_000_000 or row.kind == "latency"
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


def test_a_profile_counts_the_innermost_functions_below_ours() -> None:
    stacks = (
        "main (runners/ours.py:9);publish (/x/gnsqsync/a.py);send (/x/gnsqsync/net/a.py:7) 6\n"
        "main (runners/ours.py:9);publish (/x/gnsqsync/a.py:6) 1\n"
        "main (runners/ours.py:9);publish (/x/gnsqsync/a.py:8);wait (/y/gevent/hub.py:1) 1\n"
        "main (runners/ours.py:3) 50\n"
    )
    assert profiles._parts(stacks) == {
        "gnsqsync/net/a.py: send": 0.75,
        "gnsqsync/a.py: publish": 0.125,
        "gevent/hub.py: wait": 0.125,
    }


def test_the_counts_of_perf() -> None:
    """As ``perf stat -x,`` writes them; what it could not count is left out."""
    text = "# started on Friday\n\n1472000,ns,user_time,1472000,100.00,,\n"
    text += (
        "<not supported>,,raw_syscalls:sys_enter,0,100.00,,\n29,,context-switches,845663,100.00,,\n"
    )
    assert kernel._parse(text) == {"user_time": 1472000.0, "context-switches": 29.0}
