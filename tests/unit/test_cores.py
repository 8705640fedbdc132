"""Cores that a process may use: affinity, and the CPU limits of both versions of control groups."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from lookout import cores
from lookout.cores import usable_cores
from tests.unit.video.files.test_reader import clip

ROOT = Path(__file__).parents[2]
#: a core of this process, before a test says otherwise
CORE = min(os.sched_getaffinity(0))
POD = "kubepods/burstable/pod7/app"


def tree(folder: Path, cgroup: str, files: Mapping[str, str]) -> int:
    """The cores by a list of control groups and files below a mount, on a host of 64 cores."""
    (folder / "cgroup").write_text(cgroup)
    for name, text in files.items():
        path = folder / "mount" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return usable_cores(folder / "cgroup", folder / "mount")


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of 64 cores, all of them this process's."""
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda pid: set(range(64)))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "250000 100000"}, 3),
        ({"cpu.max": "max 100000"}, 64),
        ({"cpu.max": "9900000 100000"}, 64),
        ({}, 64),
        ({"cpu.max": ""}, 64),
        ({"cpu.max": "many 100000"}, 64),
        ({"cpu.max": "200000 0"}, 64),
    ],
)
def test_version_2_in_a_container(tmp_path: Path, files: Mapping[str, str], expected: int) -> None:
    assert tree(tmp_path, "0::/\n", files) == expected


def test_a_limit_above_holds_for_what_is_below(tmp_path: Path) -> None:
    files = {
        "kubepods/burstable/pod7/app/cpu.max": "800000 100000",
        "kubepods/burstable/pod7/cpu.max": "400000 100000",
        "kubepods/burstable/cpu.max": "max 100000",
    }
    assert tree(tmp_path, f"0::/{POD}\n", files) == 4


def test_another_groups_limit_does_not_count(tmp_path: Path) -> None:
    assert tree(tmp_path, f"0::/{POD}\n", {"kubepods/burstable/pod8/cpu.max": "100000 100000"}) == 64


@pytest.mark.parametrize("mounted", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize("path", ["", POD], ids=["own namespace", "the host's path, not mounted"])
def test_version_1(tmp_path: Path, mounted: str, path: str) -> None:
    groups = f"9:name=systemd:/\n4:memory:/one\n2:cpu,cpuacct:/{path}\n0::/\n"
    files = {f"{mounted}/cpu.cfs_quota_us": "150000", f"{mounted}/cpu.cfs_period_us": "50000"}
    assert tree(tmp_path, groups, files) == 3


def test_version_1_without_a_limit(tmp_path: Path) -> None:
    files = {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}
    assert tree(tmp_path, "1:cpu:/\n", files) == 64


@pytest.mark.parametrize("text", ["", "nonsense", "::", "1:cpu", "0::/../../other\n", "\n\n"])
def test_a_list_that_says_nothing_limits_nothing(tmp_path: Path, text: str) -> None:
    assert tree(tmp_path, text, {}) == 64


def test_without_control_groups(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "missing", tmp_path) == 64


@pytest.mark.long
def test_decoders_of_a_child_that_may_use_one_core(tmp_path: Path) -> None:
    path = tmp_path / "yard.mp4"
    path.write_bytes(clip("open"))
    code = f"""
from lookout.video.sandbox import open_recording
from lookout.models.device import limit_threads
import torch
with open_recording({str(path)!r}, sandbox=True) as reader:
    limit_threads()
    print(reader.workers, torch.get_num_threads())
"""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    child = subprocess.run(
        ["taskset", "-c", str(CORE), sys.executable, "-c", code],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    assert child.stdout.split() == ["1", "1"]


def test_torch_has_no_more_threads_than_cores() -> None:
    """In a process of its own: after an engine of vLLM on a CPU, torch's threads cannot be set any more."""
    code = """
import os, torch
from lookout.models import device
def threads(cores):
    device.usable_cores = lambda: cores
    device.limit_threads()
    return torch.get_num_threads()
torch.set_num_threads(4)
os.environ["OMP_NUM_THREADS"] = "4"
print(threads(3))
del os.environ["OMP_NUM_THREADS"]
print(threads(3), threads(64))
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.split() == ["4", "3", "3"]


@pytest.mark.long
def test_a_fork_behind_an_engine_of_vllm_computes_on_one_thread() -> None:
    """It would wait for ever for threads that its parent alone has."""
    code = """
import os, torch
from lookout.models import device
torch.set_num_threads(4)
torch.set_num_threads = lambda count: None  # as vLLM does on a CPU
device.usable_cores = lambda: 4
device.limit_threads()
child = os.fork()
if not child:
    os._exit(torch.get_num_threads())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), torch.get_num_threads())
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.split() == ["1", "4"]


@pytest.mark.parametrize("room", ["libs/lookout", "services"])
def test_nothing_else_counts_cores(room: str) -> None:
    """`os.cpu_count()` knows no limit of a container."""
    sources = [path for path in (ROOT / room).rglob("*.py") if path.name != "cores.py"]
    assert sources
    assert [path for path in sources if "cpu_count(" in path.read_text()] == []
