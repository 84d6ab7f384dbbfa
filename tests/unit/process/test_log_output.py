"""Logging set up as the documentation of Python, Flask and Django shows it, in a worker."""

from __future__ import annotations

from textwrap import dedent

import pytest

from tests.support.interpreter import run_script

# The set-ups, as ``setup``. ``gnsqsync`` is imported before them, as by settings or a module.
FLASK = """
    from logging.config import dictConfig
    dictConfig({
        "version": 1,
        "formatters": {"default": {
            "format": "[%(asctime)s] %(levelname)s in %(module)s: %(message)s",
        }},
        "handlers": {"wsgi": {"class": "logging.StreamHandler", "formatter": "default"}},
        "root": {"level": "INFO", "handlers": ["wsgi"]},
    })
"""
PYTHON_FILE = """
    import logging.config
    lines = '''
        [loggers]
        keys=root,simpleExample
        [handlers]
        keys=console
        [formatters]
        keys=simple
        [logger_root]
        level=DEBUG
        handlers=console
        [logger_simpleExample]
        level=DEBUG
        handlers=console
        qualname=simpleExample
        propagate=0
        [handler_console]
        class=StreamHandler
        level=DEBUG
        formatter=simple
        args=(sys.stderr,)
        [formatter_simple]
        format=%(asctime)s - %(name)s - %(levelname)s - %(message)s
    '''
    file = io.StringIO("\\n".join(map(str.strip, lines.splitlines())))
    logging.config.fileConfig(file, disable_existing_loggers=DISABLE)
"""
DICT = """
    from logging.config import dictConfig
    dictConfig({"version": 1, "disable_existing_loggers": DISABLE, **CONFIG})
"""
CONSOLE = '"handlers": {"console": {"class": "logging.StreamHandler"}}'
ON_CONSOLE = '{"handlers": ["console"], "level": "INFO"}'
DJANGO_ROOT = f'{{{CONSOLE}, "root": {ON_CONSOLE}}}'
DJANGO_ONLY = f'{{{CONSOLE}, "loggers": {{"django": {ON_CONSOLE}}}}}'
# Handlers like mail_admins, and like a console that only DEBUG has.
MAILS = """{
    "filters": {"debug": {"()": lambda: (lambda record: False)}},
    "handlers": {
        "mails": {"class": "logging.StreamHandler", "level": "ERROR", "stream": io.StringIO()},
        "console": {"class": "logging.StreamHandler", "filters": ["debug"]},
    },
    "root": {"handlers": ["mails", "console"], "level": "INFO"},
}"""
QUIET_PART = f'{{{CONSOLE}, "loggers": {{"gnsqsync.reader": {{"propagate": False}}}}}}'
NULL = '{"handlers": {"no": {"class": "logging.NullHandler"}}, "root": {"handlers": ["no"]}}'


def configured(config: str) -> str:
    return f"CONFIG = {config}\n{dedent(DICT)}"


SETUPS = {
    "nothing": "",
    "flask": FLASK,
    "python-file": PYTHON_FILE,
    "django-root": configured(DJANGO_ROOT),
    "django-only": configured(DJANGO_ONLY),
    "mails": configured(MAILS),
    "part": configured(QUIET_PART),
    "null": configured(NULL),
}
BEGIN = """
import io, logging, sys
from gnsqsync.runtime.loggers import keep_enabled
from gnsqsync.process.log_output import disabled_loggers, heard, readable_log, takes_warnings
for part in ("reader", "connection", "supervisor"):
    logging.getLogger(f"gnsqsync.{part}")
own = logging.getLogger("shop")
sys.stderr = shown = io.StringIO()
"""
WORK = """
with readable_log(), heard("gnsqsync.reader"):
    if LATE:
        exec(SETUP)
    begun = len(shown.getvalue())
    for part in ("reader", "connection", "supervisor"):
        logging.getLogger(f"gnsqsync.{part}").warning("has failed")
print(shown.getvalue()[begun:])
"""


def shown_by(setup: str, *, disable: bool, late: bool = False) -> list[str]:
    # A text that is executed, as some set-ups come after the start.
    before = (f"DISABLE, LATE = {disable}, {late}", f"SETUP = {dedent(setup)!r}")
    called = "if not LATE:\n    exec(SETUP)"
    return run_script(BEGIN, *before, called, WORK, shows_log=True).splitlines()


@pytest.mark.parametrize("disable", [True, False])
@pytest.mark.parametrize("name", SETUPS)
def test_a_failure_is_shown_once_with_its_time_and_level(name: str, disable: bool) -> None:
    lines = shown_by(SETUPS[name], disable=disable)
    assert len(lines) == 3, lines
    for line in lines:
        assert "has failed" in line
        assert "WARNING" in line
        assert line.strip("[")[:2] == "20"


@pytest.mark.parametrize("name", ["flask", "python-file", "django-only"])
def test_a_set_up_that_comes_later_silences_nothing(name: str) -> None:
    lines = shown_by(SETUPS[name], disable=True, late=True)
    assert len(lines) == 3, lines


def test_lines_of_the_program_stay_as_they_were() -> None:
    (line,) = run_script(
        BEGIN,
        """
        logging.basicConfig(format=None, handlers=[logging.StreamHandler()])
        logging.root.handlers[0].setFormatter(None)
        with heard("gnsqsync.reader"):
            own.warning("as it was")
        print(shown.getvalue())
        assert logging.root.handlers[0].formatter is None
        """,
        shows_log=True,
    ).splitlines()
    assert line == "as it was"


@pytest.mark.parametrize(
    ("silence", "reason"),
    [
        ("logging.basicConfig(level=logging.ERROR)", "the level ERROR"),
        ("logging.getLogger('gnsqsync.reader').setLevel('CRITICAL')", "the level CRITICAL"),
        ("logging.disable(logging.CRITICAL)", "logging.disable(CRITICAL)"),
        ("logging.getLogger('gnsqsync').addHandler(logging.NullHandler())", "a NullHandler"),
        ("logging.lastResort = None", "logging.lastResort, which is None,"),
    ],
)
def test_a_silence_that_the_program_chose_is_said_once(silence: str, reason: str) -> None:
    line, *rest = run_script(
        BEGIN,
        silence,
        """
        with readable_log(), heard("gnsqsync.reader"):
            logging.getLogger("gnsqsync.reader").warning("has failed")
        print(shown.getvalue())
        """,
        shows_log=True,
    ).splitlines()
    assert line.endswith(
        f" WARNING gnsqsync.reader: failures are not shown: {reason} hides the warnings of"
        " gnsqsync.reader"
    )
    # Python itself may say once that a logger has no handler.
    assert "has failed" not in str(rest)


def test_nothing_is_left_behind_at_the_end() -> None:
    run_script(
        BEGIN,
        "DISABLE = True",
        configured(MAILS),
        """
        assert "gnsqsync.reader" in disabled_loggers()
        with heard("gnsqsync.reader"):
            assert takes_warnings(logging.getLogger("gnsqsync.reader"))
        assert disabled_loggers() == []
        assert not takes_warnings(logging.getLogger("gnsqsync.reader"))
        """,
        shows_log=True,
    )


def test_a_reader_alone_is_heard_too() -> None:
    """No command is around it: a script that sets up logging after its imports."""
    run_script(
        """
        import io, logging
        from logging.config import dictConfig
        from gnsqsync import Reader
        from gnsqsync.reader import running_reader
        dictConfig({"version": 1, "root": {"level": "INFO"}})
        assert running_reader.log.disabled
        logging.getLogger("gnsqsync.connection").setLevel("CRITICAL")
        running_reader.log.setLevel("CRITICAL")
        reader = Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:1", on_giving_up="discard")
        reader.start(block=False)
        dictConfig({"version": 1, "root": {"level": "INFO"}})
        assert not running_reader.log.disabled
        reader.stop(0)
        reader.join(10)
        """,
        shows_log=True,
    )
