"""How a process ends with Readers and Writers in it: Ctrl-C, SIGTERM, or simply its last line.

Each test is a script in an interpreter of its own; a hang fails by the time limit, and whatever is
written to stderr fails it, too.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import pytest

from tests.component.conftest import address
from tests.component.runtime.test_fork import PREPARE, WORLDS, Run, in_every_world
from tests.support.interpreter import ROOT, SILENT
from tests.support.scripted import ScriptedNsqd, automatic, message_frame, send

IDS = [b"0123456789abcde%d" % n for n in range(3)]
THREE = send(b"".join(message_frame(b"%d" % n, id=id) for n, id in enumerate(IDS)))
READER = """
def make_reader(handler):
    return Reader("t", "ch", handler, nsqd_tcp_addresses=ADDRESS, runtime=RUNTIME,
                  max_in_flight=3, latency="throughput")

def send_soon(number):
    # From outside: on greenlets a signal hits whichever runs.
    os.system(f"(sleep 0.2; kill -{int(number)} {os.getpid()}) &")
"""
# Three messages in one segment, of which one worker can have begun one.
SCRIPT = [automatic(until="RDY"), THREE, automatic()]


GEVENTS_WORD = re.compile(
    r"^(Traceback \(most recent call last\):\n(?: .*\n)+)?KeyboardInterrupt\n[-0-9T:]+Z.*\n+",
    re.MULTILINE,
)


def run(world: str, nsqd: ScriptedNsqd, script: str) -> str:
    """Run a script in one of the worlds; what it printed to stdout."""
    where = f"ADDRESS = {address(nsqd)!r}"
    parts = (SILENT, WORLDS[world], where, PREPARE, READER, script)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(map(textwrap.dedent, parts))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=40,
    )
    # gevent itself tells of each KeyboardInterrupt, with the traceback of the greenlet it hit.
    told = done.stderr
    if world != "threads":
        told = GEVENTS_WORD.sub("", told)
    if done.returncode or told:
        # Not by assert, which would show the text once more in its own words.
        raise AssertionError(done.stderr)
    return done.stdout.strip()


def answers(nsqd: ScriptedNsqd) -> set[str]:
    return {
        " ".join((command.name, *command.parameters))
        for command in nsqd.commands
        if command.name in ("FIN", "REQ")
    }


FIRST_DONE = {f"FIN {IDS[0].decode()}"} | {f"REQ {id.decode()} 0" for id in IDS[1:]}


@in_every_world(run)
def test_ctrl_c_ends_a_blocking_start(run: Run) -> None:
    end_by("SIGINT", run)


@in_every_world(run)
def test_a_stop_by_a_signal_handler_ends_a_blocking_start(run: Run) -> None:
    end_by("SIGTERM", run)


def end_by(signal: str, run: Run) -> None:
    """The handler at work finishes, the messages that none has begun go back."""
    with ScriptedNsqd(SCRIPT) as nsqd:
        out = run(
            nsqd,
            f"""
            import signal
            signal.signal(signal.SIGTERM, lambda number, frame: reader.stop())

            def handler(message):
                eventually(lambda: reader.stats().in_flight == 3)
                send_soon(signal.{signal})
                pause(1)

            reader = make_reader(handler)
            try:
                print(reader.start())
            except KeyboardInterrupt:
                print("interrupted", reader.join())
            """,
        )
        clean = "StopResult(unanswered=0, workers_running=0)"
        assert out == (f"interrupted {clean}" if signal == "SIGINT" else clean)
        assert answers(nsqd) == FIRST_DONE
        assert [c.name for c in nsqd.commands].count("CLS") == 1


@in_every_world(run)
def test_a_second_ctrl_c_forces(run: Run) -> None:
    with ScriptedNsqd(SCRIPT) as nsqd:
        out = run(
            nsqd,
            """
            import signal
            def handler(message):
                eventually(lambda: reader.stats().in_flight == 3)
                for _ in range(2):
                    send_soon(signal.SIGINT)
                    pause(1)
                pause(60)

            reader = make_reader(handler)
            try:
                reader.start()
            except KeyboardInterrupt:
                print("interrupted", reader.join())
            """,
        )
        assert out == "interrupted StopResult(unanswered=1, workers_running=1)"
        assert answers(nsqd) == FIRST_DONE - {f"FIN {IDS[0].decode()}"}


@in_every_world(run)
def test_the_last_line_of_a_script(run: Run) -> None:
    """With a Reader whose handler is at work, and a Writer; neither was closed."""
    with ScriptedNsqd(SCRIPT, [automatic()]) as nsqd:
        run(
            nsqd,
            """
            begun = []
            def handler(message):
                begun.append(message)
                pause(60)

            reader = make_reader(handler)
            reader.start(block=False)
            eventually(lambda: begun and reader.stats().in_flight == 3)
            writer = Writer(ADDRESS, runtime=RUNTIME)
            writer.publish("t", "x")
            future = writer.publish_async("t", "y")
            """,
        )
        # The handler ends with the process, so its message goes back as well.
        assert answers(nsqd) == {f"REQ {id.decode()} 0" for id in IDS}
        assert [c.body for c in nsqd.received("PUB")] == [b"x", b"y"]


@in_every_world(run)
def test_the_last_line_beside_an_nsqd_that_hangs(run: Run) -> None:
    with ScriptedNsqd([automatic(until="RDY")], [automatic(until="PUB")]) as nsqd:
        run(
            nsqd,
            """
            reader = make_reader(print)
            reader.start(block=False)
            eventually(lambda: reader.stats().connections)
            writer = Writer(ADDRESS, runtime=RUNTIME)
            writer.publish("t", "x")
            # Which will not be answered.
            future = writer.publish_async("t", "y")
            """,
        )
        assert len(nsqd.received("PUB")) == 2


@in_every_world(run)
def test_an_exception_in_the_main_program(run: Run) -> None:
    with ScriptedNsqd(SCRIPT) as nsqd:
        with pytest.raises(AssertionError, match="ValueError: of the user") as caught:
            run(
                nsqd,
                """
                kept = []
                def handler(message):
                    message.detach()
                    kept.append(message)

                reader = make_reader(handler)
                reader.start(block=False)
                eventually(lambda: len(kept) == 3)
                raise ValueError("of the user")
                """,
            )
        # Nothing but the user's own traceback.
        assert str(caught.value).count("Traceback") == 1
        assert "CLS" in [c.name for c in nsqd.commands]
