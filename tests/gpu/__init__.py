"""What waits for a GPU: `python -m tests.gpu` lists the steps, says what they need, and runs them."""

from __future__ import annotations

import sys
from pathlib import Path

# A bare machine has a copy of the project and no installation of it.
sys.path[:0] = [path for path in (str(Path(__file__).parents[2] / "libs"),) if path not in sys.path]
