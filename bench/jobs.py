"""Runs parts of a measurement in separate processes."""

from __future__ import annotations

import multiprocessing
from argparse import Namespace
from collections.abc import Callable


def in_parallel(share: Callable[[Namespace, int], None], options: Namespace, jobs: int) -> None:
    """Run `share(options, part)` for every part below `jobs`; a single one in this process.

    Raises:
        RuntimeError: A process failed; what the others measured is kept.
    """
    if jobs == 1:
        share(options, 0)
        return
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=share, args=(options, part)) for part in range(jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    failed = [part for part, worker in enumerate(workers) if worker.exitcode]
    if failed:
        raise RuntimeError(f"parts {failed} of {jobs} failed; the same command measures what is missing")
