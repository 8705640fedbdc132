"""The example beside stock vLLM: its prompt is computed again after every slide, the session's is not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "vllm_sliding_window.py"

pytestmark = [pytest.mark.vllm, pytest.mark.long]


def test_the_example_ends_and_shows_the_avalanche() -> None:
    run = subprocess.run([sys.executable, EXAMPLE], stdout=subprocess.PIPE, text=True, check=True)
    stock, ours = run.stdout.split("lookout.Session on vLLM:")
    shares = [
        [int(computed) / int(whole) for computed, whole in re.findall(r"slide \d+: +(\d+) of (\d+)", part)]
        for part in (stock, ours)
    ]
    assert [len(part) for part in shares] == [5, 5]
    assert min(shares[0]) > 0.9
    assert max(shares[1]) < 0.5
