"""Java's ahead-of-time cache of the classes that the broker loads, which halves the CPU time of later starts.

Java 25 writes the cache when a broker that was started with `-XX:AOTCacheOutput` ends (JEP 514). Java ignores
a cache from another Java version or class path, and starts without it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from lookout.disk import FILE_MODE, is_own
from lookout.local.addresses import cache_folder
from lookout.local.java import Java

MINIMUM = 25
_WAIT_FOR_OTHERS_S = 300.0


def startup_cache(java: Java) -> Path | None:
    """Return the path of the cache for this Java; None if there is none. Another user's cache is ignored,
    because caches contain code.
    """
    path = _path(java)
    return path if java.major >= MINIMUM and is_own(path) else None


def write_startup_cache(java: Java, run: Callable[[list[str]], None]) -> Path | None:
    """Write the cache unless it exists, and return its path; None if this Java does not support it or could
    not write it.

    Args:
        java: Runs the broker.
        run: Starts a broker with these Java options, waits until it is ready, and stops it.
    """
    if java.major < MINIMUM:
        return None
    path = _path(java)
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        FileLock(path.with_suffix(".filelock"), timeout=_WAIT_FOR_OTHERS_S),
        tempfile.TemporaryDirectory(prefix=".writing-", dir=path.parent) as scratch,
    ):
        if not path.is_file():
            fresh = Path(scratch) / path.name
            run([f"-XX:AOTCacheOutput={fresh}"])
            if not fresh.is_file():
                return None
            fresh.chmod(FILE_MODE)  # whatever the umask: others must not write it
            fresh.replace(path)  # atomic: readers see all of it or nothing
    return path


def _path(java: Java) -> Path:
    return cache_folder() / f"kafka-java-{java.major}.aot"
