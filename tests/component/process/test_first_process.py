"""Process 1 of a container: a small parent that reaps and passes signals on.

Here it is a process to which Linux hands orphans (PR_SET_CHILD_SUBREAPER), as it does to process 1.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

import pytest

from gnsqsync.process import first_process
from gnsqsync.process.first_process import become_first_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

_SET_CHILD_SUBREAPER = 36


def run_below(program: str, *, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run a Python program as the child of a first process."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    return subprocess.run(
        [sys.executable, "-I", "-S", first_process.__file__, sys.executable, "-c", program],
        preexec_fn=lambda: prctl(_SET_CHILD_SUBREAPER, 1),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_the_first_process_reaps_orphans_and_no_children_of_the_program() -> None:
    done = run_below("""
import os, subprocess
shell = subprocess.run(["sh", "-c", "sleep 0.05 & echo $!; exit 3"], stdout=subprocess.PIPE)
orphan = int(shell.stdout)
while True:
    try:
        # A zombie has its number until it is reaped.
        os.kill(orphan, 0)
    except ProcessLookupError:
        break
print(shell.returncode)
""")
    assert (done.stdout, done.returncode) == ("3\n", 0)


@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), signal.SIGKILL)", 137)]
)
def test_the_exit_code_of_the_first_process_is_the_programs(end: str, code: int) -> None:
    assert run_below(f"import os, signal, sys; {end}").returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1])
def test_the_first_process_passes_each_signal_on_once(number: signal.Signals) -> None:
    done = run_below(f"""
import os, signal
came = []
signal.signal({int(number)}, lambda number, frame: came.append(number))
os.kill(os.getppid(), {int(number)})
while not came:
    pass
print(came)
""")
    assert done.stdout == f"[{int(number)}]\n"


def test_the_program_has_signals_as_a_shell_gives_them() -> None:
    done = run_below("""
import signal
with open("/proc/self/status") as status:
    print([line.split()[1].strip("0") for line in status if line.startswith("SigBlk")])
print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
""")
    assert done.stdout == "['']\nTrue\n"


@pytest.mark.parametrize(
    ("pid", "given", "begins"),
    [
        (1, ["consume", "orders"], True),
        (2, ["consume", "orders"], False),
        # A test that calls the command, as process 1 of a container.
        (1, ["consume", "sales"], False),
        (1, [], False),
    ],
)
def test_only_the_command_line_of_process_1_begins_anew(
    pid: int, given: list[str], begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[list[str]] = []
    monkeypatch.setattr(os, "getpid", lambda: pid)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "gnsqsync", "consume", "orders"])

    def execv(program: str, words: list[str]) -> None:
        began.append(words)
        raise OSError("no memory")

    monkeypatch.setattr(os, "execv", execv)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    become_first_process(given)
    # The program runs here where that fails.
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert [words[-5:] for words in began] == [
        [sys.executable, "-m", "gnsqsync", "consume", "orders"]
    ] * begins
