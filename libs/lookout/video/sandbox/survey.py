"""Inspects files of unknown origin in a sandboxed process, with limits on memory and time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lookout.video.sandbox.pool import SandboxPool, SandboxSettings
from lookout.video.segments.inspection import Inspection
from lookout.video.segments.types import CodecError, Reason


def inspect(path: str | Path, pool: SandboxPool) -> Inspection:
    """Inspect a file; problems with its content are reported in the result."""
    try:
        return pool.inspect(str(Path(path).resolve()))
    except CodecError as error:
        if error.reason in (Reason.UNAVAILABLE, Reason.CLOSED):
            raise
        return Inspection(path=str(path), reason=error.reason.value, error=error.detail)


def inspect_all(files: Sequence[Path]) -> Iterator[Inspection]:
    """Yield the inspections of files, one after the other, made by one sandboxed process."""
    # A whole recording is decoded, so the limits grow with the size of the largest file.
    largest = max((file.stat().st_size for file in files if file.is_file()), default=0) / 1e6
    with SandboxPool(1, SandboxSettings(cpu_s=30 + 4 * largest, wall_s=60 + 8 * largest)) as pool:
        for file in files:
            yield inspect(file, pool)
