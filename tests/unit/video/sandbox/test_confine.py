"""A decoder process that hostile bytes have taken over gets nothing, whoever it runs as."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lookout.video.sandbox import SandboxError, SandboxPool, SandboxSettings
from lookout.video.sandbox.landlock import landlock_version
from lookout.video.segments import CodecError, DecodeRequest
from tests.unit.video.sandbox.attempts import attempts
from tests.unit.video.segments.clips import FakeMalice, encode

ROOT = Path(__file__).parents[4]
MODULES = ("tests.unit.video.segments.clips", "tests.unit.video.sandbox.attempts")

# An ordinary user whose Python may lie in root's home: it keeps the right to read that, which the decoder
# process gives up again.
ORDINARY = """
import ctypes, os, struct
libc = ctypes.CDLL(None)
number = {"x86_64": 126, "aarch64": 91}[os.uname().machine]
os.setgroups([]); os.setgid(65534); libc.prctl(8, 1, 0, 0, 0); os.setresuid(65534, 65534, 65534)
libc.syscall(number, struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", 4, 4, 4, 0, 0, 0))
libc.prctl(47, 2, 2, 0, 0); libc.prctl(4, 1, 0, 0, 0)
"""
PARENT = """
import json, os, sys
os.environ["TOKEN"] = "secret"
from lookout.video.sandbox import SandboxError, SandboxPool, SandboxSettings
from lookout.video.segments import DecodeRequest
from tests.unit.video.segments.clips import *
modules = ("tests.unit.video.segments.clips", "tests.unit.video.sandbox.attempts")
settings = SandboxSettings(modules=modules, landlock=LANDLOCK)
with SandboxPool(1, settings) as pool:
    request = DecodeRequest(28, 28, gather=FakeMalice(f"escape {os.getpid()} {sys.argv[1]}"))
    try:
        pool.decode(encode(frames=3), request)
    except SandboxError as error:
        print(json.dumps({"said": str(error).splitlines()[-1], "uid": os.getuid()}))
    status = open(f"/proc/{pool.pids()[0]}/status").read() if os.getuid() == 0 else ""
    print(json.dumps(status))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="confinement is Linux's")
@pytest.mark.parametrize("landlock", [True, False], ids=["landlock", "no-landlock"])
@pytest.mark.parametrize("ordinary", [False, True], ids=["as-we-are", "ordinary-user"])
def test_nothing_that_a_taken_over_decoder_tries_succeeds(
    tmp_path: Path, ordinary: bool, landlock: bool
) -> None:
    if ordinary and os.getuid() != 0:
        pytest.skip("this is an ordinary user already")
    if landlock and not landlock_version():
        pytest.skip("this kernel has no Landlock")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    if ordinary:
        os.chown(secret, 65534, 65534)
        os.chown(tmp_path, 65534, 65534)
        for folder in tmp_path.parents[: len(tmp_path.parents) - 2]:
            folder.chmod(folder.stat().st_mode | 0o055)
    script = (ORDINARY if ordinary else "") + PARENT.replace("LANDLOCK", str(landlock))
    done = subprocess.run(
        [sys.executable, "-c", script, str(secret)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said, status = map(json.loads, done.stdout.splitlines())
    assert said == {"said": "ZeroDivisionError: succeeded: []", "uid": 65534 if ordinary else os.getuid()}
    if status:
        assert "CapEff:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
        assert "Seccomp:\t2" in status


def test_the_attempts_succeed_outside(tmp_path: Path) -> None:
    """Else a mistake in an attempt would look like safety."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    harmless = (
        "read",
        "kill",
        "rt_sigqueueinfo",
        "pidfd_open",
        "process_vm",
        "setpriority",
        "sched_set",
        "socket",
    )
    try:
        tries = attempts(child.pid, str(secret))
        works = {name for name, attempt in tries.items() if name.startswith(harmless) and attempt()}
    finally:
        child.kill()
        child.wait()
    wanted = {f"read /proc/{child.pid}/{name}" for name in ("mem", "environ", "maps", "fd/0")}
    wanted |= {f"read {secret}", "read /etc/passwd", f"kill {child.pid} 0", f"pidfd_open {child.pid} 0"}
    wanted |= {f"setpriority 0 {child.pid} 19", "socket 2 1 0", "socketpair 1 1 0"}
    assert wanted <= works


@pytest.mark.slow
def test_a_decoder_that_answers_by_halves_is_ended() -> None:
    """A header without its message must not hold the parent for ever."""
    with (
        SandboxPool(1, SandboxSettings(wall_s=1, modules=MODULES)) as pool,
        pytest.raises(CodecError, match="hung within 1 s"),
    ):
        pool.decode(encode(frames=3), DecodeRequest(28, 28, gather=FakeMalice("half an answer")))


def test_a_decoder_cannot_fill_memory_with_its_answer() -> None:
    settings = SandboxSettings(result=1 << 20, modules=MODULES)
    with SandboxPool(1, settings) as pool, pytest.raises(SandboxError, match="File too large"):
        pool.decode(encode(frames=3), DecodeRequest(28, 28, gather=FakeMalice("fill")))
