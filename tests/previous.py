"""The last release, out of the repository's history."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

VERSION = "0.2.0"
#: the commit that made it
COMMIT = "794ecea529f8acc2798fc7bfb2f31bb105e19e1e"
_ROOT = Path(__file__).parents[1]


def unpack(folder: Path, *paths: str) -> Path:
    """Write files of the last release into a folder, and return the folder.

    Args:
        folder: Where to.
        paths: Which of them, folders with all that is in them.

    Raises:
        FileNotFoundError: The history is not there, as in a shallow clone.
    """
    command = ["git", "-C", str(_ROOT), "archive", COMMIT, *paths]
    done = subprocess.run(command, check=False, capture_output=True)
    if done.returncode:
        raise FileNotFoundError(f"version {VERSION} is commit {COMMIT[:12]}: {done.stderr.decode()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        tar.extractall(folder, filter="data")
    return folder
