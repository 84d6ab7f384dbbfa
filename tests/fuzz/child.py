"""One target in a process of its own, under atheris; started by ``python -m tests.fuzz``.

libFuzzer ends the process: with 0 when the time is over, else with the finding saved in a file.
"""

from __future__ import annotations

import argparse
import logging
import resource
import sys
from pathlib import Path

import atheris

MEBI = 1024 * 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--memory", type=int, required=True, help="of the address space, in MiB")
    parser.add_argument("--timeout", type=int, required=True, help="for one input, in seconds")
    parser.add_argument("--work", type=Path, required=True, help="new inputs go here")
    parser.add_argument("--findings", type=Path, required=True)
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (given.memory * MEBI,) * 2)
    logging.disable(logging.CRITICAL)
    with atheris.instrument_imports(include=["gnsqsync"]):
        from tests.fuzz.harness import CORPUS
        from tests.fuzz.targets import TARGETS
    target = TARGETS[given.target]
    dictionary = given.work.parent / f"{given.target}.dict"
    escaped = ("".join(f"\\x{byte:02x}" for byte in word) for word in target.words)
    dictionary.write_text("".join(f'"{word}"\n' for word in escaped))
    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={given.seconds}",
            f"-seed={given.seed}",
            f"-timeout={given.timeout}",
            f"-report_slow_units={given.timeout}",
            f"-rss_limit_mb={given.memory}",
            f"-dict={dictionary}",
            f"-artifact_prefix={given.findings}/{given.target}-",
            "-print_final_stats=1",
            str(given.work),
            str(CORPUS / given.target),
        ],
        target.run,
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()
