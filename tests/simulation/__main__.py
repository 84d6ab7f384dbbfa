"""Runs histories of the simulated cluster.

python -m tests.simulation --seeds 1000 --minutes 10    new histories
python -m tests.simulation --seed 4711                  one, with its log
"""

from __future__ import annotations

import argparse
import sys

from tests.simulation import environment


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description="Histories of a simulated cluster."
    )
    parser.add_argument("--seed", type=int, help="run this one history, and print its log")
    parser.add_argument("--stacks-at", type=float, help="show then (seconds) where each task is")
    parser.add_argument("--first", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--seeds", type=int, default=100, help="how many (100)")
    parser.add_argument("--minutes", type=float, default=60.0, help="for so long at most (60)")
    options = parser.parse_args(arguments)
    environment.restart_fixed()
    environment.install()
    from tests.simulation import campaign

    if options.seed is not None:
        return campaign.replay(options.seed, options.stacks_at)
    return campaign.run(options.first, options.seeds, options.minutes)


if __name__ == "__main__":
    sys.exit(main())
