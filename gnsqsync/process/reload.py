"""Restarts of a program when its Python files change, for development.

Knows files, a child process and signals. Only commands use it, as ``supervisor``. The child runs
the same command line in a new interpreter.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.util import cache_from_source
from pathlib import Path
from types import TracebackType

from gnsqsync.process.output import flush, mention
from gnsqsync.process.signals import Requests, ending, handled, tell_terminal
from gnsqsync.process.supervisor import ESCALATION, Place
from gnsqsync.runtime import Event, choose

__all__ = [
    "Files",
    "forget_compiled",
    "reloaded_place",
    "run_reloading",
    "wait_if_the_program_cannot_start",
    "waiting_for_repair",
]

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]

# Environment variable of the child. Its value is the process id of the parent that restarts it.
_VARIABLE = "GNSQSYNC_RELOADED_BY"
# Environment variable of a probe. Its value is the process id of the parent.
_PROBE = "GNSQSYNC_RELOAD_PROBE_OF"
# Seconds between two looks at the source files.
_LOOK_SECONDS = 0.5
# Seconds between two looks of the parent at a probe.
_PROBE_SECONDS = 0.05
# Seconds after the handlers' time at which a child is killed.
_GRACE_SECONDS = 10.0


def reloaded_place() -> Place | None:
    """Return the Place of a process that ``run_reloading`` has started, or None in any other."""
    parent = os.environ.get(_VARIABLE, "")
    # A program that a handler starts inherits the variable, but has another parent.
    if parent != str(os.getppid()):
        return None
    return Place(parent=int(parent))


class Files:
    """The Python files of the program in this process, and their changes.

    These are all files in the packages of loaded modules, loaded or not, except for the standard
    library and installed packages.
    """

    def __init__(self, more: Iterable[Path] = ()) -> None:
        self._more = [path for path in more if not _is_installed(path)]
        self._seen = self._look()

    def changed(self) -> list[Path]:
        """Return the files that were added, removed or written since the last call, sorted."""
        before, self._seen = self._seen, self._look()
        return sorted(
            path
            for path in before.keys() | self._seen.keys()
            if before.get(path) != self._seen.get(path)
        )

    def _look(self) -> dict[Path, int]:
        times = {}
        for path in {*self._files(), *self._more}:
            try:
                times[path] = path.stat().st_mtime_ns
            except OSError:
                continue  # The file was removed after the listing.
        return times

    def _files(self) -> Iterator[Path]:
        for name, module in list(sys.modules.items()):
            if "." in name:
                continue
            file = getattr(module, "__file__", None)
            if file is None:
                # A package without an __init__.py has folders, and a built-in module has none.
                for folder in map(Path, getattr(module, "__path__", ())):
                    if not _is_installed(folder.resolve()):
                        yield from folder.resolve().rglob("*.py")
                continue
            if not isinstance(file, str) or not file.endswith(".py"):
                continue
            path = Path(file).resolve()
            if _is_installed(path):
                continue
            if path.name == "__init__.py":
                yield from path.parent.rglob("*.py")
            else:
                yield path


@cache
def _installed() -> set[Path]:
    """Return the folders of the standard library and of installed packages."""
    keys = ("stdlib", "platstdlib", "purelib", "platlib")
    return {Path(sysconfig.get_path(key)).resolve() for key in keys}


def _is_installed(path: Path) -> bool:
    return not _installed().isdisjoint(path.parents)


def forget_compiled(path: Path) -> None:
    """Make Python compile the file again.

    Python keeps the compiled file if size and time of the source are the same. The time counts in
    whole seconds, so Python would miss a changed letter soon after a start.
    """
    with suppress(OSError):  # Without the right to remove it, this program has not written it.
        os.unlink(cache_from_source(path))


def run_reloading(say: Callable[[str], object], *, stop_timeout: float) -> int:
    """Run this process's command line in a child, again after each change. Return the exit code.

    After a change the child gets SIGTERM, so its handlers finish and other messages go back to
    nsqd. A child that ended by itself is started again after the next change. SIGTERM, SIGINT and
    SIGHUP end both processes: the first one as a change does, the second forces, the third kills.
    ``stop_timeout``: seconds for handlers.
    """
    return _Reloader(say, stop_timeout).run()


@contextmanager
def waiting_for_repair(
    reload: bool, say: Callable[[str], object], *, always: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """With ``reload``, wait for a change if a file of the program fails at its start.

    The next change of a file runs the command line again, in this process. A signal that ends a
    program raises SystemExit with 0. An error that comes from no file of the program is raised,
    unless it is one of ``always``. In a child of ``run_reloading`` each error is raised, because
    its parent waits.
    """
    if reload:
        _end_a_probe()
    try:
        yield
    except Exception as error:
        files = _files_of(error)
        if not reload or reloaded_place() is not None or not (files or isinstance(error, always)):
            raise
        sys.excepthook(type(error), error, error.__traceback__)
        _begin_anew_after_change(files, say)
        raise SystemExit(0) from None


def wait_if_the_program_cannot_start(*commands: str) -> None:
    """Let ``waiting_for_repair`` handle an error that the framework raises before the command.

    Call this at the start of an application, which its framework loads before any command runs.
    Without one of ``commands`` and ``--reload`` on this process's command line, nothing is done.
    """
    given = set(sys.argv)
    if "--reload" not in given or given.isdisjoint(commands) or reloaded_place() is not None:
        return
    if not isinstance(sys.excepthook, _WaitingHook):
        _end_a_probe()
        sys.excepthook = _WaitingHook(sys.excepthook)


class _WaitingHook:
    """The ``sys.excepthook`` of a program that waits for a repair."""

    def __init__(self, before: _Hook) -> None:
        self._before = before

    def __call__(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        sys.excepthook = self._before
        try:
            with waiting_for_repair(True, partial(mention, sys.stderr)):
                raise error
        except SystemExit:
            raise  # The interpreter ends with its code.
        except BaseException as other:  # noqa: BLE001 - the interpreter ends, and says why
            self._before(type(other), other, trace)


def _files_of(error: BaseException) -> set[Path]:
    """Return the program's files in the tracebacks of the error, without files of this package."""
    found: set[Path] = set()
    part: BaseException | None = error
    while part is not None:
        names = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(part.__traceback__)]
        if isinstance(part, SyntaxError) and part.filename:
            names.append(part.filename)
        found.update(Path(name).resolve() for name in names if os.path.isfile(name))
        part = part.__cause__ or part.__context__
    own = Path(__file__).resolve().parents[1]
    return {path for path in found if not _is_installed(path) and own not in path.parents}


def _begin_anew_after_change(files: Iterable[Path], say: Callable[[str], object]) -> None:
    """Run the command line again in this process when a file changes. Return after a signal.

    A framework loads files (Django its settings) before the command waits for anything. A probe
    runs first, so an error in these files waits for the next change, too.
    """
    watched = Files(files)
    asked = choose(None).event()
    with handled(ending(), lambda number, frame: asked.set()):
        while True:
            say("failed at its start; waiting for a file to change")
            changed: list[Path] = []
            while not changed:
                if asked.wait(_LOOK_SECONDS):
                    return
                changed = watched.changed()
            for path in changed:
                forget_compiled(path)
            say(f"{changed[0]} changed; starting again")
            if _gets_as_far_as_here(asked):
                break
            if asked.is_set():
                return
    flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # nosec B606


def _gets_as_far_as_here(asked: Event) -> bool:
    """Return True if the command line, run in a child, reaches the point where errors wait."""
    environment = {**os.environ, _PROBE: str(os.getpid())}
    words = [sys.executable, *sys.orig_argv[1:]]
    with subprocess.Popen(words, env=environment, preexec_fn=_ignore_interrupts) as probe:
        while probe.poll() is None:
            if asked.wait(_PROBE_SECONDS):
                probe.kill()
        return probe.returncode == 0 and not asked.is_set()


def _end_a_probe() -> None:
    """End this process with 0 if it only shows that the command line gets as far as here."""
    if os.environ.get(_PROBE, "") == str(os.getppid()):
        flush()
        os._exit(0)


def _ignore_interrupts() -> None:
    # A terminal sends SIGINT to the child, too, but the parent sends it SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Reloader:
    def __init__(self, say: Callable[[str], object], stop_timeout: float) -> None:
        self._say = say
        self._stop_timeout = stop_timeout
        self._runtime = choose(None)
        self._asked_now: Event = self._runtime.event()
        self._requests = Requests()
        self._files = Files()
        self._child: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        code = 0
        with handled(ending(), self._ask):
            try:
                while not self._requests.level:
                    self._start()
                    self._wait_for_change()
                    code = self._stop()
            finally:
                if self._child is not None:
                    self._child.kill()
                    self._child.wait()
        return code

    def _ask(self, number: int, frame: object) -> None:
        level = self._requests.add(number)
        if level in (1, 2) and number != signal.SIGHUP:
            tell_terminal(level)
        self._asked_now.set()

    def _start(self) -> None:
        environment = {**os.environ, _VARIABLE: str(os.getpid())}
        self._child = subprocess.Popen(
            [sys.executable, *sys.orig_argv[1:]], env=environment, preexec_fn=_ignore_interrupts
        )

    def _wait_for_change(self) -> None:
        ended = False
        while not self._asked_now.wait(_LOOK_SECONDS):
            changed = self._files.changed()
            if changed:
                for path in changed:
                    forget_compiled(path)
                self._say(f"{changed[0]} changed; starting again")
                return
            assert self._child is not None
            code = self._child.poll()
            if code is not None and not ended:
                ended = True
                self._say(f"ended with exit code {code}; waiting for a file to change")

    def _stop(self) -> int:
        """Send SIGTERM, and the next signals of ESCALATION for further signals that arrive here.

        Return the child's exit code, 0 to 255.
        """
        assert self._child is not None
        deadline = self._runtime.now() + self._stop_timeout + _GRACE_SECONDS
        sent = 0
        while self._child.poll() is None:
            if sent < max(1, self._requests.level):
                self._child.send_signal(ESCALATION[min(sent, 2)])
                sent += 1
            if self._runtime.now() >= deadline:
                self._child.kill()
            self._asked_now.clear()
            self._asked_now.wait(0.05)
        code = self._child.wait()
        self._child = None
        if code in (-signal.SIGTERM, -signal.SIGHUP):
            return 0  # The child had no handler for the signal yet, so it had begun no message.
        return code if code >= 0 else 1
