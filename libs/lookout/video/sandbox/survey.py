"""Inspects files of unknown origin in a sandboxed process, with limits on memory and time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lookout.video.sandbox.pool import SandboxPool, SandboxSettings
from lookout.video.segments.inspection import Inspection
from lookout.video.segments.types import CodecError, Reason


@contextmanager
def _pool(pool: SandboxPool | None, files: Sequence[Path]) -> Iterator[SandboxPool]:
    if pool is not None:
        yield pool
        return
    # A whole recording is decoded; the limits grow with its size.
    largest = max((file.stat().st_size for file in files if file.is_file()), default=0) / 1e6
    with SandboxPool(1, SandboxSettings(cpu_s=30 + 4 * largest, wall_s=60 + 8 * largest)) as own:
        yield own


def inspect(path: str | Path, pool: SandboxPool | None = None) -> Inspection:
    """Inspect a file; problems of its content are reported in the result."""
    with _pool(pool, [Path(path)]) as sandbox:
        try:
            return sandbox.inspect(str(Path(path).resolve()))
        except CodecError as error:
            if error.reason in (Reason.UNAVAILABLE, Reason.CLOSED):
                raise
            return Inspection(path=str(path), reason=error.reason.value, error=error.detail)


def inspect_all(path: str | Path) -> Iterator[Inspection]:
    """Inspect a file, or every file under a directory in path order, with one sandboxed process."""
    root = Path(path)
    files = sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else [root]
    with _pool(None, files) as sandbox:
        for file in files:
            yield inspect(file, sandbox)
