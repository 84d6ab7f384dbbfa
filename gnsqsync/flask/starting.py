"""``flask nsq`` before the application is loaded, by an entry point of the package.

Knows how Flask finds an application and its commands. Must not import what an application may want
to patch first, unless ``--reload`` is given.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from typing import Any

import click
from flask import Flask
from flask.cli import ScriptInfo

__all__ = ["NSQ_HELP", "nsq"]

NSQ_HELP = "Consume from NSQ, publish to it, and watch it."


class _Commands(click.Command):
    """The command ``nsq``, which stands for the group that the application has.

    Flask looks for commands of entry points before it loads the application. So with ``--reload``
    an application that cannot be loaded waits for its repair.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Load the application. Return the context of its own group."""
        assert parent is not None and info_name is not None
        app = _load(parent.ensure_object(ScriptInfo), args)
        group = app.cli.get_command(parent, info_name)
        if group is None:
            raise click.UsageError(
                f"the application {app.name!r} has no NSQ; NSQ(app), or nsq.init_app(app) in its"
                " factory, adds the commands"
            )
        return group.make_context(info_name, args, parent, **extra)


def _load(info: ScriptInfo, args: list[str]) -> Flask:
    waiting: Any = nullcontext()
    if "--reload" in args:
        from gnsqsync.process.output import mention
        from gnsqsync.process.reload import waiting_for_repair

        waiting = waiting_for_repair(True, partial(mention, sys.stderr))
    with waiting:
        return info.load_app()


nsq: click.Command = _Commands("nsq", help=NSQ_HELP)
