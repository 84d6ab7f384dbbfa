"""What the programs that consume share: signals, exit codes, watched files."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gnsqsync.errors import ConfigError
from gnsqsync.process.reload import Files, forget_compiled, reloaded_place
from gnsqsync.process.supervisor import Ending, Place, StopSignals, supervise
from gnsqsync.stats import StopResult
from tests.support.interpreter import run_script
from tests.support.programs import Mortal
from tests.support.texts import ROOT

pytestmark = pytest.mark.usefixtures("hangups")


def test_the_first_signal_asks_and_the_second_forces() -> None:
    stops: list[float] = []
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals(stops.append, 20.0):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert stops == [20.0, 0.0]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture
def hangup() -> Iterator[None]:
    """Put back what SIGHUP means: a program that got it ends, and pytest does not."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_hangup_asks_and_never_forces(hangup: None) -> None:
    stops: list[float] = []
    with StopSignals(stops.append, 20.0) as signals:
        assert signals.level == 0
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signals.level == 1
        os.kill(os.getpid(), signal.SIGTERM)
        assert stops == [20.0]
        os.kill(os.getpid(), signal.SIGTERM)
    assert stops == [20.0, 0.0]


@pytest.mark.parametrize("ignored", [False, True])
def test_a_hangup_reaches_each_supervised_process(ignored: bool) -> None:
    """A closed terminal: the kernel and the shell send SIGHUP to the whole group."""
    out = run_script(f"""
        import os, signal, sys, threading
        from gnsqsync.process.supervisor import StopSignals, supervise

        os.setpgrp()
        if {ignored}:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        read, write = os.pipe()
        ends = []

        def run(place):
            stop = threading.Event()
            with StopSignals(lambda timeout: (ends.append(timeout), stop.set()), 20.0, place):
                os.write(write, b"x")
                while not stop.wait(0.1):
                    pass
            os.write(1, f"stopped with {{ends}}\\n".encode())
            return 0

        def hang_up():
            os.read(read, 1), os.read(read, 1)
            for _ in range(2):
                os.killpg(0, signal.SIGHUP)
            if {ignored}:
                os.write(1, b"still there\\n")
                os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=hang_up).start()
        sys.exit(supervise(run, 2, stop_timeout=20.0))
    """)
    assert out.splitlines() == ["still there"] * ignored + ["stopped with [20.0]"] * 2


def test_a_third_signal_ends_the_process() -> None:
    out = run_script("""
        import os, signal
        from gnsqsync.process.supervisor import StopSignals
        pid = os.fork()
        if not pid:
            with StopSignals(lambda timeout: None, 20.0):
                for _ in range(3):
                    os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """)
    assert out == "143"


@pytest.fixture
def terms() -> Iterator[None]:
    """Put back what SIGTERM means: a process below a supervisor ends behind its Readers."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_only_the_signals_of_the_place_are_taken(terms: None) -> None:
    before = signal.getsignal(signal.SIGINT)
    with StopSignals(lambda timeout: None, 1.0, Place(parent=1)):
        assert signal.getsignal(signal.SIGINT) is before


def test_a_supervised_process_is_forced_by_its_supervisor_only(terms: None) -> None:
    stops: list[float] = []
    before = signal.getsignal(signal.SIGQUIT)
    with StopSignals(stops.append, 20.0, Place(parent=1)):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stops == [20.0]
        os.kill(os.getpid(), signal.SIGQUIT)
    assert stops == [20.0, 0.0]
    assert signal.getsignal(signal.SIGQUIT) is before


def test_outside_of_the_main_thread_no_signal_is_touched() -> None:
    seen: list[object] = []

    def run() -> None:
        before = signal.getsignal(signal.SIGTERM)
        with StopSignals(lambda timeout: None, 1.0):
            seen.append(signal.getsignal(signal.SIGTERM) is before)
        try:
            supervise(lambda place: 0, 2, stop_timeout=1.0)
        except ConfigError as error:
            seen.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [True, "several processes need the main thread"]


@pytest.mark.parametrize("patched", [False, True])
def test_a_child_ends_as_a_program_that_was_never_forked(patched: bool) -> None:
    """A child joins its threads and runs atexit; the things of its parent stay."""
    out = run_script(f"""
        if {patched}:
            from gevent import monkey
            monkey.patch_all()
        import atexit, os, signal, sys, tempfile, threading, time
        from gnsqsync.process.supervisor import StopSignals, supervise

        def tell(text):
            os.write(1, f"{{text}}\\n".encode())

        def work():
            time.sleep(0)
            tell("thread")

        def run(place):
            atexit.register(tell, "of the child")
            atexit.register(lambda: 1 / 0)
            # The child ends already, so a signal that asks for the end changes nothing.
            atexit.register(lambda: os.kill(os.getpid(), signal.SIGTERM))
            sys.stderr = open(os.devnull, "w")
            asked = []
            with StopSignals(asked.append, 20.0, place):
                if place.number:
                    os.write(on, b"x")
                else:
                    os.read(go, 1)
                    os.kill(place.parent, signal.SIGTERM)
                while not asked:
                    time.sleep(0.01)
            threading.Thread(target=work).start()
            return 0

        go, on = os.pipe()
        folder = tempfile.TemporaryDirectory()
        parent = os.getpid()
        atexit.register(lambda: os.getpid() == parent or tell("of the parent"))
        code = supervise(run, 2, stop_timeout=20.0)
        tell(f"{{code}} {{os.path.exists(folder.name)}}")
        folder.cleanup()
    """)
    lines = out.splitlines()
    assert sorted(lines) == sorted([*["thread", "of the child", "of the parent"] * 2, "0 True"])


def test_a_process_of_the_parent_outlives_the_end_of_a_child() -> None:
    out = run_script("""
        import multiprocessing, os
        from gnsqsync.process.supervisor import supervise

        read, write = os.pipe()
        other = multiprocessing.get_context("fork").Process(
            target=os.read, args=(read, 1), daemon=True
        )
        other.start()
        supervise(lambda place: 0, 2, stop_timeout=20.0)
        os.write(write, b"x")
        other.join()
        print(other.exitcode)
    """)
    assert out == "0"


def test_an_end_that_hangs_is_cut_short() -> None:
    out = run_script(
        """
        import atexit, logging, os, signal, sys, threading
        from gnsqsync.runtime.child_end import end_child

        pid = os.fork()
        if not pid:
            logging.basicConfig(stream=sys.stdout, format="%(message)s")
            threading.Thread(target=threading.Event().wait).start()
            end_child(75, 0.05)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    line, code = out.splitlines()
    assert "was at its end for 0.05 s; ending it without the rest of its atexit hooks" in line
    assert code == "75"


@pytest.mark.parametrize(
    ("results", "asked", "code", "text"),
    [
        ([StopResult(0, 0)], True, 0, "stopped"),
        ([StopResult(0, 0)], False, 1, "stopped without being asked"),
        (
            [StopResult(0, 0), StopResult(2, 1)],
            True,
            1,
            "stopped with 2 messages unanswered and 1 handler at work",
        ),
    ],
)
def test_the_exit_code(results: list[StopResult], asked: bool, code: int, text: str) -> None:
    ending = Ending(results, asked)
    assert (ending.exit_code, str(ending)) == (code, text)


def test_one_process_is_this_one() -> None:
    assert supervise(lambda place: 7 if place == Place() else 0, stop_timeout=1.0) == 7


def test_an_inherited_variable_makes_nobody_a_reloaded_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert reloaded_place() is None
    monkeypatch.setenv("GNSQSYNC_RELOADED_BY", "1")
    assert reloaded_place() is None
    monkeypatch.setenv("GNSQSYNC_RELOADED_BY", str(os.getppid()))
    place = reloaded_place()
    assert place is not None
    assert place == Place(0, os.getppid())
    assert not place.is_orphan


def test_files_of_the_program_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop").mkdir()
    package, part = tmp_path / "shop" / "__init__.py", tmp_path / "shop" / "not_loaded.py"
    single = tmp_path / "single.py"
    for path in (package, part, single):
        path.touch()
    for name, path in (("shop_of_test", package), ("single_of_test", single)):
        module = ModuleType(name)
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, name, module)
    files = Files()
    assert files.changed() == []
    assert not any("site-packages" in str(path) for path in files._seen)
    for path in (package, part, single):
        os.utime(path, ns=(1, 1))
        assert files.changed() == [path]
        assert files.changed() == []
    new = tmp_path / "shop" / "new.py"
    new.touch()
    assert files.changed() == [new]
    new.unlink()
    assert files.changed() == [new]
    (tmp_path / "beside.py").touch()
    assert files.changed() == []


def test_a_package_without_an_init_file_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = tmp_path / "shop_of_test" / "inner" / "jobs.py"
    jobs.parent.mkdir(parents=True)
    jobs.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("shop_of_test", "shop_of_test.inner", "shop_of_test.inner.jobs"):
        monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    files = Files()
    assert not any("site-packages" in str(path) for path in files._seen)
    os.utime(jobs, ns=(1, 1))
    assert files.changed() == [jobs]


def test_a_change_that_python_would_not_notice_is_compiled(tmp_path: Path) -> None:
    source = tmp_path / "shop.py"

    def version() -> str:
        return run_script(
            f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.dont_write_bytecode = False",
            "import shop; print(shop.version)",
        )

    def write(number: int) -> None:
        source.write_text(f"version = {number}\n")
        os.utime(source, (1_700_000_000, 1_700_000_000))

    write(1)
    assert version() == "1"
    write(2)
    assert version() == "1"
    forget_compiled(source)
    assert version() == "2"
    forget_compiled(tmp_path / "never_compiled.py")


def test_a_reloaded_child_that_a_stop_meets_in_its_start_has_begun_nothing(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("""
import os, signal, sys, time
from gnsqsync.process.reload import reloaded_place, run_reloading

place = reloaded_place()
if place is None:
    sys.exit(run_reloading(print, stop_timeout=20.0))
os.kill(place.parent, signal.SIGTERM)
time.sleep(60)  # SIGTERM ends it
""")
    ended = subprocess.run([sys.executable, str(script)], timeout=60)
    assert ended.returncode == 0


FAILING_AT_FIRST = """
import os, sys
from gnsqsync.process.reload import waiting_for_repair

sys.path.insert(0, "")
with waiting_for_repair("--reload" in sys.argv, lambda text: print(text, flush=True)):
    {inside}
    import jobs_of_test
    print("runs in", os.getpid(), jobs_of_test.name, flush=True)
"""


def test_a_program_that_fails_to_begin_with_waits_for_its_repair(tmp_path: Path) -> None:
    """Each failure waits, the second and the third, too."""
    (tmp_path / "program.py").write_text(FAILING_AT_FIRST.format(inside="pass"))
    jobs = tmp_path / "jobs_of_test.py"
    jobs.write_text("def (")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "program.py", "--reload"]
    with Mortal(
        words, cwd=tmp_path, env=environment, text=True, stdout=-1, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "failed at its start; waiting for a file to change\n"
        for broken in ("import no_such_module_of_ours", "1 / 0"):
            jobs.write_text(broken)
            assert process.stdout.readline() == f"{jobs} changed; starting again\n"
            failed = "failed at its start; waiting for a file to change\n"
            assert process.stdout.readline() == failed
        jobs.write_text("name = 'repaired'")
        assert process.stdout.readline() == f"{jobs} changed; starting again\n"
        assert process.stdout.readline() == f"runs in {process.pid} repaired\n"
        assert process.wait(60) == 0


STARTED_BY_A_FRAMEWORK = """
import sys
from gnsqsync.process.reload import wait_if_the_program_cannot_start

sys.path.insert(0, "")
import settings_of_test

wait_if_the_program_cannot_start("consume")
import jobs_of_test
"""


def test_a_framework_that_cannot_start_the_program_waits_too(tmp_path: Path) -> None:
    """The settings, which are loaded before this package, may break during the repair, too."""
    (tmp_path / "program.py").write_text(STARTED_BY_A_FRAMEWORK)
    settings = tmp_path / "settings_of_test.py"
    settings.write_text("")
    jobs = tmp_path / "jobs_of_test.py"
    jobs.write_text("def (")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "program.py"]
    other = subprocess.run(
        [*words, "publish", "--reload"],
        cwd=tmp_path,
        env=environment,
        timeout=60,
        capture_output=True,
    )
    assert (other.returncode, b"waiting" in other.stderr) == (1, False)
    with Mortal(
        [*words, "consume", "--reload"], cwd=tmp_path, env=environment, text=True, stderr=-1
    ) as process:
        assert process.stderr is not None
        for broken in ("def (", "raise KeyError", ""):
            while "waiting for a file to change" not in (line := process.stderr.readline()):
                assert line
            settings.write_text(broken)
            assert process.stderr.readline() == f"{settings} changed; starting again\n"
        while "waiting for a file to change" not in (line := process.stderr.readline()):
            assert line
        jobs.write_text("print('repaired')")
        assert process.stderr.read() == f"{jobs} changed; starting again\n"
        assert process.wait(60) == 0


DJANGO = """
from gnsqsync.django.management import execute_from_command_line
execute_from_command_line()
"""
# The program ``flask`` has the command ``nsq`` by the entry point of the installed package.
FLASK = """
from flask.cli import FlaskGroup
from gnsqsync.flask.starting import nsq
flask = FlaskGroup()
flask.add_command(nsq)
flask.main()
"""
REPAIRED_DJANGO = "INSTALLED_APPS = ['gnsqsync.django', 'broken_app_of_test']"
REPAIRED_FLASK = """
from flask import Flask
from gnsqsync.flask import NSQ
nsq = NSQ(app := Flask('shop', root_path='.'))

@nsq.handler('t', 'c')
def first(message): pass

@nsq.handler('t', 'c')
def second(message): pass
"""
FLASK_WORDS = ["--app", "source_of_test", "nsq", "consume"]


@pytest.mark.parametrize(
    ("broken", "program", "words", "repaired"),
    [
        ("def (", DJANGO, ["nsq_consume"], REPAIRED_DJANGO),
        # Flask makes an error of its own of an ImportError.
        ("import no_such_module_of_ours", FLASK, FLASK_WORDS, REPAIRED_FLASK),
    ],
    ids=["django", "flask"],
)
def test_sources_that_a_framework_loads_first_wait_at_the_very_first_start(
    broken: str, program: str, words: list[str], repaired: str, tmp_path: Path
) -> None:
    """The repaired source still has an error that this package finds. One signal ends it all."""
    pytest.importorskip("django" if program is DJANGO else "flask")
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "broken_app_of_test.py").write_text("def (")
    source = tmp_path / "source_of_test.py"
    source.write_text(broken)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": source.stem}
    with subprocess.Popen(
        [sys.executable, "program.py", *words, "--reload"],
        cwd=tmp_path,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        output = ""
        while "waiting for a file to change" not in (line := process.stdout.readline()):
            assert line, output
            output += line
        assert "Traceback" in output and source.name in output
        source.write_text(repaired)
        assert process.stdout.readline() == f"{source} changed; starting again\n"
        while "waiting for a file to change" not in (line := process.stdout.readline()):
            assert line
        process.terminate()
        assert (process.stdout.read(), process.wait(60)) == ("", 0)


def test_a_signal_ends_what_waits_for_a_repair(tmp_path: Path) -> None:
    (tmp_path / "jobs_of_test.py").write_text("def (")
    (tmp_path / "program.py").write_text(FAILING_AT_FIRST.format(inside="pass"))
    with Mortal(
        [sys.executable, "program.py", "--reload"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=-1,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        ("pass", ()),
        # An error of the command line, and of no file.
        ("raise SystemExit(2)", ("--reload",)),
    ],
)
def test_no_other_error_waits(inside: str, words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "jobs_of_test.py").write_text("def (")
    (tmp_path / "program.py").write_text(FAILING_AT_FIRST.format(inside=inside))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "program.py", *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        timeout=60,
    )
    assert ended.returncode == (2 if words else 1)


def test_a_process_that_cannot_be_started_is_tried_again() -> None:
    """And costs none of the others its end in good order."""
    out = run_script("""
        import errno, os, signal
        from gnsqsync.process.supervisor import supervise
        fork, calls = os.fork, []

        def fork_but_once():
            calls.append(None)
            if len(calls) == 2:
                raise OSError(errno.EAGAIN, "no process left")
            return fork()

        def run(place):
            if place.number == 1:
                os.kill(place.parent, signal.SIGTERM)
            signal.pause()

        os.fork = fork_but_once
        print(supervise(run, 2, stop_timeout=20.0), len(calls))
    """)
    assert out.split() == ["0", "3"]


def test_an_error_of_before_fork_ends_the_others_in_good_order() -> None:
    out = run_script("""
        import signal
        from gnsqsync.process.supervisor import StopSignals, supervise
        calls = []

        def before_fork():
            calls.append(None)
            if len(calls) == 2:
                begun.recv()
                raise RuntimeError("the database is gone")

        def run(place):
            with StopSignals(stop.send, 20.0):
                begin.send(None)
                # The handler that is at work.
                print("asked to stop in", stopped.recv())
            return 0

        from multiprocessing import Pipe
        (begun, begin), (stopped, stop) = Pipe(False), Pipe(False)
        try:
            supervise(run, 2, stop_timeout=20.0, before_fork=before_fork)
        except RuntimeError as error:
            print(error)
        print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
    """)
    assert out.splitlines() == ["asked to stop in 20.0", "the database is gone", "True"]


def test_a_signal_to_all_processes_counts_once_and_a_second_forces() -> None:
    out = run_script("""
        import os, signal, time
        from gnsqsync.process.supervisor import StopSignals, supervise

        def run(place):
            stops = []
            with StopSignals(stops.append, 20.0, place) as signals:
                # As a service manager does with each process of the service.
                os.kill(os.getpid(), signal.SIGTERM)
                if place.number:
                    os.write(tell, b"x")
                else:
                    os.read(told, 1)
                for count in (2, 3):
                    if not place.number:
                        os.kill(place.parent, signal.SIGTERM)
                    while signals.level < count:
                        time.sleep(0.01)
            os.write(1, f"{stops}\\n".encode())
            return 0

        told, tell = os.pipe()
        code = supervise(run, 2, stop_timeout=20.0)
        os.write(1, f"{code}\\n".encode())
    """)
    assert out.splitlines() == ["[20.0, 0.0]", "[20.0, 0.0]", "0"]
