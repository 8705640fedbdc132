from __future__ import annotations

import os
import platform
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from lookout.video.sandbox import SandboxError, SandboxPool, SandboxSettings
from lookout.video.sandbox.seccomp import AUDIT, Network, seccomp_program
from lookout.video.segments import CodecError, DecodeRequest, Limits, Reason, SoftwareDecoder
from tests.eventually import eventually
from tests.unit.video.segments.clips import FakeMalice, Recorder, encode

CLIPS = ("tests.unit.video.segments.clips",)
QUICK = SandboxSettings(cpu_s=0.5, memory=1 << 30, modules=CLIPS)
CLIP = encode(speed=2, bframes=1)


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    with SandboxPool(1, QUICK) as pool:
        pool.decode(
            CLIP, DecodeRequest(28, 28)
        )  # a warm worker: later tests measure their deed, not the start
        yield pool


def ask(pool: SandboxPool, deed: str) -> object:
    return pool.decode(CLIP, DecodeRequest(28, 28, gather=FakeMalice(deed)))


def test_the_sandbox_gives_what_the_decoder_gives(pool: SandboxPool) -> None:
    request = DecodeRequest(42, 28, gather=Recorder())
    here, there = SoftwareDecoder().decode(CLIP, request), pool.decode(CLIP, request)
    assert there.facts == here.facts
    assert there.geometry == here.geometry
    assert [s.info for s in there.frames] == [s.info for s in here.frames]
    assert (there.pixels == here.pixels).all()
    there.pixels[:] = 0  # the caller's own


def test_one_worker_serves_many_segments(pool: SandboxPool) -> None:
    pids = pool.pids()
    for _ in range(5):
        pool.decode(CLIP, DecodeRequest(28, 28))
    assert pool.pids() == pids


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"", Reason.EMPTY), (b"no video" * 100, Reason.UNREADABLE), (CLIP[:40], Reason.UNREADABLE)],
)
def test_bad_bytes_are_one_clear_error(pool: SandboxPool, data: bytes, reason: Reason) -> None:
    pids = pool.pids()
    with pytest.raises(CodecError) as caught:
        pool.decode(data, DecodeRequest(28, 28))
    assert caught.value.reason is reason
    assert pool.pids() == pids


def test_limits_hold_before_and_in_the_worker(pool: SandboxPool) -> None:
    for limits in (Limits(bytes=10), Limits(side=20)):
        with pytest.raises(CodecError) as caught:
            pool.decode(CLIP, DecodeRequest(28, 28, limits=limits))
        assert caught.value.reason in (Reason.BYTES, Reason.DIMENSIONS)


@pytest.mark.parametrize("deed", ["socket", "program", "fork"])
def test_a_worker_has_no_sockets_and_starts_nothing(pool: SandboxPool, deed: str) -> None:
    with pytest.raises(SandboxError, match="PermissionError"):
        ask(pool, deed)


def test_a_worker_sits_in_an_empty_directory_with_a_bare_environment(
    pool: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = pool.decode(CLIP, DecodeRequest(28, 28, gather=FakeMalice("look")))
    motion = decoded.frames[0].motion
    assert motion is not None
    assert motion.v is not None
    assert motion.v.tolist() == [[0, 0]]


@pytest.mark.slow
@pytest.mark.parametrize(("deed", "said"), [("die", "SIGKILL"), ("spin", "CPU"), ("spin unstoppably", "CPU")])
def test_what_kills_the_decoder_twice_is_poison(pool: SandboxPool, deed: str, said: str) -> None:
    before = pool.restarts
    with pytest.raises(CodecError, match=said) as caught:
        ask(pool, deed)
    assert caught.value.reason is Reason.POISON
    assert pool.restarts == before + 2
    assert pool.decode(CLIP, DecodeRequest(28, 28)).facts.frames == 30


@pytest.mark.slow
def test_what_hangs_the_decoder_twice_is_poison() -> None:
    with SandboxPool(1, SandboxSettings(wall_s=1, modules=CLIPS)) as pool:
        with pytest.raises(CodecError, match="hung within 1 s, then hung within 1 s") as caught:
            ask(pool, "sleep")
        assert caught.value.reason is Reason.POISON
        assert pool.restarts == 2
        assert pool.pids() == []


def test_memory_is_bounded(pool: SandboxPool) -> None:
    with pytest.raises(CodecError) as caught:
        ask(pool, "hoard")
    assert caught.value.reason is Reason.MEMORY


def test_a_bug_is_reported_with_its_trace(pool: SandboxPool) -> None:
    pids = pool.pids()
    with pytest.raises(SandboxError, match="a bug in the gather"):
        ask(pool, "bug")
    assert pool.pids() == pids


def test_a_gather_that_cannot_be_made_again_is_refused(pool: SandboxPool) -> None:
    class Bare:
        needs_all = needs_luma = False

    with pytest.raises(CodecError, match="Bare") as caught:
        pool.decode(CLIP, DecodeRequest(28, 28, gather=Bare()))  # type: ignore[arg-type]
    assert caught.value.reason is Reason.REQUEST


@pytest.mark.long
def test_a_process_is_replaced_before_the_kernel_would_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's limit is for a life, and no job may suffer from those before it."""
    monkeypatch.setattr("lookout.video.sandbox.pool.CPU_JOBS", 4)
    with SandboxPool(1, QUICK) as pool:
        pids = []
        for _ in range(8):  # 0.3 s of CPU each, the kernel's limit is 2 s
            ask(pool, "busy")
            pids += pool.pids()
        assert pool.restarts == 0
        assert len(set(pids)) > 1


@pytest.mark.slow
def test_threads_share_the_pool() -> None:
    with SandboxPool(2, QUICK) as pool, ThreadPoolExecutor(6) as threads:
        futures = [threads.submit(pool.decode, CLIP, DecodeRequest(28, 28)) for _ in range(12)]
        assert {future.result().facts.frames for future in futures} == {30}
        assert len(pool.pids()) <= 2


def test_closing_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    descriptors, children = len(os.listdir("/proc/self/fd")), set(psutil.Process().children())
    pool = SandboxPool(2, QUICK)
    pool.decode(CLIP, DecodeRequest(28, 28))
    assert list(tmp_path.iterdir()) == []  # also while it works: a killed process leaves nothing either
    pids = pool.pids()
    pool.close()
    pool.close()
    assert list(tmp_path.iterdir()) == []
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert set(psutil.Process().children()) <= children
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    with pytest.raises(CodecError) as caught:
        pool.decode(CLIP, DecodeRequest(28, 28))
    assert caught.value.reason is Reason.CLOSED


def test_closing_ends_a_decode_at_work() -> None:
    pool = SandboxPool(1, SandboxSettings(wall_s=60, modules=CLIPS))
    pool.decode(CLIP, DecodeRequest(28, 28))
    caught: list[CodecError] = []

    def work() -> None:
        try:
            ask(pool, "sleep")
        except CodecError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    (worker,) = pool._alive
    eventually(lambda: os.fstat(worker._out).st_size > 0)  # it has begun to sleep
    pids = pool.pids()
    pool.close()
    thread.join(120)
    assert not thread.is_alive()
    assert [error.reason for error in caught] == [Reason.CLOSED]
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.slow
def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    """SIGKILL the parent while its worker sleeps in a decode: the worker goes too."""
    script = (
        "from lookout.video.sandbox import SandboxPool, SandboxSettings\n"
        "from lookout.video.segments import DecodeRequest\n"
        "from tests.eventually import eventually\n"
        "from tests.unit.video.segments.clips import *\nimport os, threading\n"
        "pool = SandboxPool(1, SandboxSettings(modules=('tests.unit.video.segments.clips',)))\n"
        "pool.decode(encode(), DecodeRequest(28, 28))\n"
        "asleep = DecodeRequest(28, 28, gather=FakeMalice('sleep'))\n"
        "threading.Thread(target=pool.decode, args=(encode(), asleep), daemon=True).start()\n"
        "(worker,) = pool._alive\n"
        "eventually(lambda: os.fstat(worker._out).st_size > 0)\n"
        "print(pool.pids()[0], flush=True)\n"
        "threading.Event().wait()\n"
    )
    root = Path(__file__).parents[4]
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=root,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert parent.stdout is not None
    worker = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    psutil.wait_procs([worker], timeout=120)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_workers_are_replaced_after_their_share_of_jobs() -> None:
    with SandboxPool(1, SandboxSettings(jobs=2)) as pool:
        seen = set()
        for _ in range(4):
            pool.decode(CLIP, DecodeRequest(28, 28))
            seen |= set(pool.pids())
        assert pool.restarts == 0
        assert len(seen) <= 2


def test_a_decoder_starts_no_threads_and_learns_nothing_of_paths(tmp_path: Path) -> None:
    """It cannot tell a path that exists from one that does not, installed code among them."""
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.mkdir()
    with SandboxPool(1, SandboxSettings(modules=("tests.unit.video.segments.clips",))) as pool:
        for deed, said in (
            ("threads", "0 threads"),
            (f"paths {there} {missing} / /etc/passwd {os.__file__}", r"said: \['EPERM'\]"),
        ):
            with pytest.raises(SandboxError, match=said):
                pool.decode(CLIP, DecodeRequest(28, 28, gather=FakeMalice(deed)))


@pytest.mark.slow
def test_a_decoder_with_threads_has_a_few_and_not_thousands() -> None:
    settings = SandboxSettings(threads=2, modules=("tests.unit.video.segments.clips",))
    with SandboxPool(1, settings) as pool:
        assert pool.decode(CLIP, DecodeRequest(28, 28)).pixels.size
        with pytest.raises((SandboxError, CodecError), match="started more than 24 threads"):
            pool.decode(CLIP, DecodeRequest(28, 28, gather=FakeMalice("threads and sleep")))


@pytest.mark.long
def test_an_idle_decoder_that_computes_is_ended() -> None:
    with SandboxPool(1, SandboxSettings(modules=("tests.unit.video.segments.clips",))) as pool:
        pool.decode(CLIP, DecodeRequest(28, 28))
        (honest,) = pool.pids()
        pool.decode(CLIP, DecodeRequest(28, 28, gather=FakeMalice("compute when idle")))
        pool.decode(CLIP, DecodeRequest(28, 28))  # it computes after this answer
        assert pool.pids() == [honest]
        eventually(lambda: has_ended(honest))
        assert pool.decode(CLIP, DecodeRequest(28, 28)).pixels.size
        assert pool.pids() != [honest]
        assert pool.restarts == 0  # no job failed


def has_ended(child: int) -> bool:
    """Whether all threads of a child have: its first one is a zombie before that. It is not reaped."""
    try:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # somebody has reaped it
        return True


@pytest.mark.parametrize("threads", [True, False])
@pytest.mark.parametrize("network", Network)
@pytest.mark.parametrize("machine", AUDIT)
def test_the_filter_jumps_within_itself(machine: str, network: Network, threads: bool) -> None:
    code = seccomp_program(machine, pid=1234, may_open=True, network=network, threads=threads)
    steps = [struct.unpack("=HBBI", code[i : i + 8]) for i in range(0, len(code), 8)]
    for i, (operation, yes, no, _) in enumerate(steps):
        if operation & 0x07 == 0x05:
            assert i + 1 + max(yes, no) < len(steps)
    assert steps[-1][0] == 0x06


def test_this_machine_takes_sockets_away_for_good(pool: SandboxPool) -> None:
    if sys.platform != "linux" or platform.machine() not in AUDIT:
        pytest.skip("no system call filter on this platform")
    pool.decode(CLIP, DecodeRequest(28, 28))
    assert all(psutil.Process(pid).net_connections() == [] for pid in pool.pids())
    status = Path(f"/proc/{pool.pids()[0]}/status").read_text()
    assert "Seccomp:\t2" in status
