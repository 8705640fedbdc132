"""What a sandboxed decoder imports before its first job: it starts again after every crash."""

from __future__ import annotations

import subprocess
import sys


def test_a_decoder_imports_no_settings_and_no_clients() -> None:
    heavy = ("pydantic", "torch", "grpc", "confluent_kafka", "redis", "httpx", "asyncio")
    script = (
        "import sys, lookout.video.sandbox.worker, lookout.pruning\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
