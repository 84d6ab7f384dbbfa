"""The tasks that this process knows. A message can name only these, and never imports a module.

Knows modules and Django's tasks; knows no message and no table.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from datetime import datetime
from importlib import import_module
from types import ModuleType
from typing import Any

from django.apps import apps
from django.tasks import Task
from django.tasks.exceptions import InvalidTask
from django.utils.module_loading import module_has_submodule

from gnsqsync.django.tasks.reasons import UnknownTask
from gnsqsync.errors import ConfigError

__all__ = ["find", "load", "paths"]

MODULE = "tasks"

log: logging.Logger = logging.getLogger("gnsqsync.django")

# Modules that ``load`` has tried to import.
_loaded: set[str] = set()


def load(modules: Iterable[str]) -> None:
    """Import the module ``tasks`` of each installed app, and ``modules``, once in this process.

    An app whose module fails is left out with a WARNING: the module may belong to another system.

    Raises:
        ConfigError: One of ``modules`` cannot be imported.
    """
    for app in apps.get_app_configs():
        name = f"{app.name}.{MODULE}"
        if name in _loaded:
            continue
        _loaded.add(name)
        if app.module is not None and module_has_submodule(app.module, MODULE):
            try:
                import_module(name)
            except Exception as error:  # noqa: BLE001 - the module is the project's
                log.warning(
                    "the module %s cannot be imported, so its tasks are unknown: %r", name, error
                )
    for name in modules:
        if name in _loaded:
            continue
        try:
            import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"OPTIONS['modules'] of TASKS has {name!r}, which cannot be imported: {error}"
            ) from error
        _loaded.add(name)


def find(
    path: str, modules: Iterable[str], queue_name: str, backend: str, run_after: datetime | None
) -> Task[Any, Any]:
    """Return the task of that path, with these attributes.

    Raises:
        UnknownTask: No module of this process has it, or the settings refuse it.
    """
    task = _find(path)
    if task is None:
        load(modules)
        task = _find(path)
    if task is None:
        module = path.rpartition(".")[0]
        raise UnknownTask(
            f"this process does not know the task {path}: workers know the module {MODULE!r} of"
            f" each installed app, and the modules in TASKS[{backend!r}]['OPTIONS']['modules'];"
            f" add {module!r} there if the task is in it"
        )
    try:
        return task.using(queue_name=queue_name, backend=backend, run_after=run_after)
    except InvalidTask as error:
        text = f"the settings of this process refuse the task {path}: {error}"
        raise UnknownTask(text) from error


def _find(path: str) -> Task[Any, Any] | None:
    module, _, name = path.rpartition(".")
    return _tasks(sys.modules.get(module)).get(name)


def _tasks(module: object) -> dict[str, Task[Any, Any]]:
    """Return the tasks of a module by their names there, without running code of the module."""
    # cffi puts objects into sys.modules that only pretend to be modules.
    if not issubclass(type(module), ModuleType):
        return {}
    # A __getattr__ or a class of the module may import other modules, so ModuleType is asked. A
    # lazy object computes its value when asked for __class__, so type() is used, not isinstance().
    names: dict[str, Any] = ModuleType.__getattribute__(module, "__dict__")
    return {name: value for name, value in list(names.items()) if issubclass(type(value), Task)}


def paths() -> list[str]:
    """Return the paths of all tasks that this process knows."""
    found = set()
    for name, module in list(sys.modules.items()):
        for task in _tasks(module).values():
            if task.func.__module__ == name:
                found.add(task.module_path)
    return sorted(found)
