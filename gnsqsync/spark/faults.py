"""Faults for tests: a read task is killed or delayed at a named point. Knows no more."""

from __future__ import annotations

import os
import random
import re
import signal
import time

from gnsqsync.errors import ConfigError

__all__ = ["POINTS", "Faults"]

# In the order in which a task passes them; those of an entry come for each one.
POINTS = ("collected", "before_create", "after_create", "after_finish", "before_close", "emit")
_FAULT = re.compile(r"(\w+)(?:#(\d+))?:(\w+)(?:=(.+))?")
# The actions, and what may stand behind the = of each.
_VALUES = {
    "kill": "",
    "kill_once": ".+",
    "delay": r"\d+(\.\d+)?(-\d+(\.\d+)?)?",
    "fail": "",
}


class Faults:
    """What the option ``fault`` says, as ``"before_create:delay=0-0.3;after_create#2:kill"``.

    ``point:action``, several with ``;`` between. ``point#n`` is its n-th passing, from 1.
    Actions: ``kill`` (SIGKILL to this process), ``kill_once=<path>`` (only by the one that makes
    this file, with its process id in it), ``delay=<seconds>`` or ``delay=<from>-<to>`` (at
    random), ``fail`` (an error). ConfigError for anything else.
    """

    def __init__(self, text: str) -> None:
        self._passed = dict.fromkeys(POINTS, 0)
        self._faults: list[tuple[str, int, str, str]] = []
        for word in filter(None, text.split(";")):
            found = _FAULT.fullmatch(word.strip())
            point, number, action, value = found.groups("") if found else ("", "", "", "")
            if point not in POINTS or not re.fullmatch(_VALUES.get(action, "(?!)"), value):
                raise ConfigError(
                    f"fault {word!r} is not point:action with a point of {', '.join(POINTS)}"
                    " and an action: kill, kill_once=<path>, delay=<seconds>, fail"
                )
            self._faults.append((point, int(number or 0), action, value))

    def __call__(self, point: str) -> None:
        """The task passes ``point``."""
        if not self._faults:
            return
        self._passed[point] += 1
        for at, number, action, value in self._faults:
            if at == point and number in (0, self._passed[point]):
                self._do(point, action, value)

    def _do(self, point: str, action: str, value: str) -> None:
        if action == "delay":
            low, _, high = value.partition("-")
            time.sleep(random.uniform(float(low), float(high or low)))
        elif action == "fail":
            raise OSError(f"a fault that a test asked for, at {point}")
        elif action == "kill" or _made(value):
            os.kill(os.getpid(), signal.SIGKILL)


def _made(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    os.write(descriptor, b"%d" % os.getpid())
    os.close(descriptor)
    return True
