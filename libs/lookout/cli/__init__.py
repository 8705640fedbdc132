"""The `lookout` command line."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Run the `lookout` command; the commands are imported only now."""
    try:
        from lookout.cli.app import main as run

        run()
    except KeyboardInterrupt:  # Ctrl-C, also during imports
        sys.exit(130)
    finally:
        # Exempt all objects from the garbage collection at exit, which would visit every object of torch and
        # take a second of CPU.
        gc.freeze()
