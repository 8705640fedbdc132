"""``python -m tests.cluster.in_image CONTAINER MODULE``: a service in a container of buildah's.

Settings of the environment go along; a `Fleet` runs it as one of its services.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from tests.cluster import workshop

USER = "10001:10001"


def command(container: str, words: Sequence[str], settings: Mapping[str, str], *options: str) -> list[str]:
    """The command line of buildah that runs words in a container as its images' user."""
    given = [word for name, value in settings.items() for word in ("--env", f"{name}={value}")]
    return [
        "buildah",
        "run",
        "--isolation",
        "chroot",
        "--user",
        USER,
        *given,
        *options,
        container,
        "--",
        *words,
    ]


def main() -> None:
    """Become the service."""
    container, *module = sys.argv[1:]
    settings = {name: value for name, value in os.environ.items() if name.startswith("LOOKOUT_")}
    environment = workshop.environment()
    os.execvpe("buildah", command(container, ["python", "-m", *module], settings), environment)


if __name__ == "__main__":
    main()
