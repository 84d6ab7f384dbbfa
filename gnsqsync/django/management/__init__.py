"""The management commands, which Django finds here by name, and their command line."""

from __future__ import annotations

from django.core.management import execute_from_command_line as execute

from gnsqsync.process.reload import wait_if_the_program_cannot_start

__all__ = ["execute_from_command_line", "wait_for_repair"]

# Commands with the option --reload.
_RELOADING = "nsq_consume", "nsq_tasks"


def execute_from_command_line(argv: list[str] | None = None) -> None:
    """Run a command as Django's function of this name does, for ``manage.py``.

    With ``--reload``, settings that fail at the first start make ``nsq_consume`` and ``nsq_tasks``
    wait for the next change. With Django's own function they end the process, because Django loads
    the settings before it knows the command.

    Args:
        argv: The words of the command line. None means ``sys.argv``.
    """
    wait_for_repair()
    execute(argv)


def wait_for_repair() -> None:
    """Make a command with ``--reload`` wait if Django cannot load the program."""
    wait_if_the_program_cannot_start(*_RELOADING)
