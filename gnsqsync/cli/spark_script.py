"""``gnsqsync spark script``: print the path of the script that spark-submit runs."""

from __future__ import annotations

import importlib.util

import click


@click.command(
    epilog='Example: spark-submit --master yarn "$(gnsqsync spark script)" archive orders'
    " --channel archive --to /data/nsq"
)
def script() -> int:
    """Print the path of the script that runs a job under spark-submit.

    After the path come a command and its options, the same as after 'gnsqsync spark'.
    """
    found = importlib.util.find_spec("gnsqsync.cli.submit.gnsqsync_job")
    assert found is not None
    click.echo(found.origin)
    return 0
