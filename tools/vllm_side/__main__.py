"""Runs in the environment of vLLM: all comparisons, and a summary of them."""

from __future__ import annotations

import argparse
import sys
import time
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

RANDOM = "random deployment"


def main() -> int:
    """The exit code: 1 where something differs."""
    options = argparse.ArgumentParser()
    options.add_argument("--random", type=int, required=True, help="deployments that can be planned")
    options.add_argument("--seed", type=int, required=True)
    given = options.parse_args()
    # vLLM looks for the platform on its first import.
    from vllm_side.corpus import check_corpus
    from vllm_side.deployments import random, shipped
    from vllm_side.extension import check_extension
    from vllm_side.planning import check_deployment
    from vllm_side.report import Report

    report, began = Report(), time.monotonic()
    check_corpus(report)
    check_extension(report)
    with TemporaryDirectory() as folder:
        for case in shipped(Path(folder)):
            check_deployment(case, "shipped deployment", report)
        for case in random(3 * given.random, given.seed, Path(folder)):
            if report.compared[RANDOM] < given.random:
                check_deployment(case, RANDOM, report)
    print(f"\nvLLM {version('vllm')}, {time.monotonic() - began:.0f} s\n{report.summary()}")
    return 1 if report.different else 0


if __name__ == "__main__":
    sys.exit(main())
