"""Prometheus' own checker of rules: on PATH, or out of Debian's package, unpacked into the user's cache."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from filelock import FileLock

from lookout.local.addresses import cache_folder

_PACKAGE = "prometheus"
_PATIENCE_S = 300.0


def find_promtool() -> Path | None:
    """The program promtool; None where it is neither installed nor Debian's package can be fetched.

    The package is unpacked, not installed: that needs no root.
    """
    if program := shutil.which("promtool"):
        return Path(program)
    folder = cache_folder() / "promtool"
    program_file = folder / "usr/bin/promtool"
    if program_file.exists():
        return program_file
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        if not program_file.exists():
            try:
                _run(["apt-get", "download", "--quiet", _PACKAGE], folder)
            except subprocess.CalledProcessError:
                return None
            (package,) = folder.glob(f"{_PACKAGE}_*.deb")
            _run(["dpkg-deb", "--extract", str(package), str(folder)], folder)
            package.unlink()
            (folder / "usr/bin/prometheus").unlink()
    return program_file


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=_PATIENCE_S)
