"""The `lookout` command line."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Entry point; the commands are imported when it runs."""
    try:
        from lookout.cli.app import main as run

        run()
    except KeyboardInterrupt:  # also while the commands are imported
        sys.exit(130)
    finally:
        # The interpreter's last collections would walk every object of torch, about a second of CPU time.
        gc.freeze()
