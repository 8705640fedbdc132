"""What a service checks before it starts, each in a process of its own limits."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHILD = """
import resource, sys
from lookout.runtime.worker.startup import check_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
check_open_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def _child(soft: int, hard: int) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", CHILD, str(soft), str(hard)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_too_few_open_files_are_named_before_kafka_is_blamed() -> None:
    child = _child(128, 128)
    assert child.returncode != 0
    assert "StartupError: this process may open only 128 files, but needs 512" in child.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("soft", "hard"), [(128, 1024), (1024, 1024)])
def test_a_soft_limit_is_raised_to_what_is_allowed(soft: int, hard: int) -> None:
    child = _child(soft, hard)
    assert child.stderr == ""
    assert child.stdout.strip() == str(hard)
