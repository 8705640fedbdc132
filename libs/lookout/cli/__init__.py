"""The `lookout` command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point; the commands are imported when it runs."""
    try:
        from lookout.cli.app import main as run

        run()
    except KeyboardInterrupt:  # also while the commands are imported
        sys.exit(130)


__all__ = ["main"]
