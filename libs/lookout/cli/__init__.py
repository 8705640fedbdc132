"""The `lookout` command line."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Entry point; the commands are imported when it runs."""
    try:
        from lookout.cli.app import main as run

        run()
    except KeyboardInterrupt:  # Ctrl-C, also during imports
        sys.exit(130)
    finally:
        # Exempt objects from the garbage collection at exit, which would visit every object of torch: a
        # second of CPU.
        gc.freeze()
