"""Children that never outlive their parent; folders that never outlive their owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil
import pytest

from lookout.local import Child, Fleet, LocalError, free_ports
from lookout.local.processes import (
    ephemeral_ports,
    is_held,
    port_is_free,
    remove_orphans,
    remove_scratch,
    scratch_folder,
)
from tests.eventually import eventually

SLEEPER = [sys.executable, "-c", "print('awake', flush=True); import time; time.sleep(600)"]
PARENT = """
import sys, time
from pathlib import Path
from lookout.local import Child
from lookout.local.processes import scratch_folder
folder = scratch_folder("orphan")
child = Child([sys.executable, "-c", "import time; time.sleep(600)"], folder / "log")
print(child.pid, folder, flush=True)
time.sleep(600)
"""


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_child_is_guarded_and_stops(tmp_path: Path) -> None:
    child = Child(SLEEPER, tmp_path / "log")
    assert child.alive
    assert os.getpgid(child.pid) == child.pid
    assert child.stop() == -signal.SIGTERM
    assert child.exit_code == -signal.SIGTERM


def test_stop_kills_what_ignores_the_request(tmp_path: Path) -> None:
    deaf = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); "
    child = Child([sys.executable, "-c", deaf + "time.sleep(600)"], tmp_path / "log")
    eventually(lambda: "deaf" in child.tail())
    assert child.stop(patience=0.2) == -signal.SIGKILL


def test_stop_ends_grandchildren_too(tmp_path: Path) -> None:
    nested = "import subprocess,sys,time; p=subprocess.Popen(['sleep','600']); print(p.pid, flush=True); "
    child = Child([sys.executable, "-c", nested + "time.sleep(600)"], tmp_path / "log")
    grandchild = int(eventually(lambda: child.tail().strip()))
    child.stop()
    eventually(lambda: has_ended(grandchild))


@pytest.fixture
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else sweeps here."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.usefixtures("own_temporary_folder")
def test_a_killed_parent_takes_its_children_with_it_and_its_folder_is_swept() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent, parent.stdout:
        pid, folder = parent.stdout.readline().split()
        parent.kill()
    eventually(lambda: has_ended(int(pid)))
    assert Path(folder).exists()
    remove_scratch(scratch_folder("sweeper"))
    assert not Path(folder).exists()


@pytest.mark.usefixtures("own_temporary_folder")
def test_living_owners_keep_their_folders() -> None:
    mine, unknown = scratch_folder("mine"), Path(tempfile.mkdtemp(prefix="lookout-unknown-"))
    remove_orphans()
    assert mine.exists()
    assert unknown.exists()
    other = [sys.executable, "-c", "from lookout.local.processes import remove_orphans as r; print(r())"]
    assert str(mine) not in subprocess.run(other, capture_output=True, text=True, check=True).stdout
    remove_scratch(mine)
    unknown.rmdir()
    assert not mine.exists()


def test_a_held_file_is_free_again_when_its_holder_dies(tmp_path: Path) -> None:
    program = "import sys,time; from pathlib import Path; from lookout.local.processes import hold; "
    program += "hold(Path(sys.argv[1]), 'text'); print('held', flush=True); time.sleep(600)"
    path = tmp_path / "file"
    holder = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder, holder.stdout:
        assert holder.stdout.readline() == "held\n"
        assert is_held(path)
        assert path.read_text() == "text"
        holder.kill()
    assert not is_held(path)


def test_a_thread_may_not_start_a_child(tmp_path: Path) -> None:
    caught: list[BaseException] = []

    def start() -> None:
        try:
            Child(SLEEPER, tmp_path / "log")
        except LocalError as error:
            caught.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    with pytest.raises(LocalError, match="main thread"):
        raise caught[0]


def test_free_ports_differ_and_are_free() -> None:
    ports = free_ports(8)
    assert len(set(ports)) == 8
    assert all(port_is_free(port) for port in ports)


def test_servers_get_no_port_that_a_client_may_be_given() -> None:
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert not set(ports) & set(ephemeral_ports())
    assert min(ports) >= 10_000


def test_a_port_that_a_client_may_be_given_is_refused(tmp_path: Path) -> None:
    port = ephemeral_ports().start + 7
    with pytest.raises(LocalError, match=rf"port {port} is in this machine's ephemeral range"):
        Fleet(tmp_path / "fleet", kafka_port=port)
    assert not (tmp_path / "fleet").exists()
