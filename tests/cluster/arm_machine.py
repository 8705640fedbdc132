"""An emulated machine for arm64 with a kernel of its own, in which a program of an image runs.

qemu's emulation of programs alone has neither seccomp nor Landlock, without which decoders refuse to work.
Here Debian's kernel for arm64 boots with the image's files as its first file system. Needs qemu-system-arm,
mmdebstrap and cpio.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.cluster.in_image import USER
from tests.cluster.tools import CACHE, ToolError, say

MACHINE: Final = "qemu-system-aarch64"
PROGRAMS: Final = (MACHINE, "mmdebstrap", "cpio")
#: a processor as clouds have it (Graviton 2)
_CPU: Final = "neoverse-n1"
_MEMORY_MB: Final = 4096
_PATIENCE_S: Final = 1800.0
_ENDED: Final = "lookout-ended"
#: where the files given to the program are
GIVEN: Final = "/given"
_START: Final = f"""#!/bin/sh
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mount -t tmpfs -o mode=1777 tmp /tmp
cd /tmp
export PATH=/opt/lookout/bin:/usr/local/bin:/usr/bin:/bin HOME=/tmp
setpriv --reuid {{user}} --regid {{group}} --clear-groups --inh-caps=-all --bounding-set=-all {{words}}
echo {_ENDED} $?
echo o > /proc/sysrq-trigger
sleep 60
"""


def kernel() -> Path:
    """Debian's kernel for arm64; fetched once.

    Raises:
        ToolError: It cannot be fetched.
    """
    folder = CACHE / "arm64-kernel"
    if not (there := sorted(folder.glob("vmlinuz-*"))):
        say("fetching a kernel for arm64 ...")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as files:
            command = ["mmdebstrap", "--mode=root", "--variant=extract", "--architectures=arm64"]
            command += ["--include=linux-image-arm64", "bookworm", f"{files}/root"]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                raise ToolError(f"no kernel for arm64: {done.stderr[-1000:]}")
            for path in Path(files, "root", "boot").glob("vmlinuz-*"):
                shutil.copy(path, folder)
        there = sorted(folder.glob("vmlinuz-*"))
    return there[-1]


def on_machine(root: Path, words: Sequence[str], given: Sequence[Path]) -> str:
    """Boot the machine with an image's files, run a program as the images' user, and return what it printed.

    Args:
        root: The image's files.
        words: The program and its arguments; no word has spaces.
        given: Files that it finds in the folder `GIVEN`.

    Raises:
        ToolError: It failed; the end of what it printed is in the message.
    """
    user, group = USER.split(":")
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        added, files = Path(folder, "added"), Path(folder, "files")
        target = added / GIVEN.lstrip("/")
        target.mkdir(parents=True)
        for path in given:
            shutil.copy(path, target)
        (added / "start").write_text(_START.format(user=user, group=group, words=" ".join(words)))
        (added / "start").chmod(0o755)
        added.chmod(0o755)
        with files.open("wb") as archive:
            for part in (root, added):  # the kernel unpacks one archive after the other
                listed = subprocess.run(
                    ["find", ".", "-xdev", "-print0"], cwd=part, check=True, capture_output=True
                )
                command = ["cpio", "--create", "--null", "--format=newc", "--quiet"]
                subprocess.run(command, cwd=part, input=listed.stdout, stdout=archive, check=True)
        machine = [MACHINE, "-machine", "virt", "-cpu", _CPU, "-smp", "2", "-m", str(_MEMORY_MB)]
        machine += ["-nodefaults", "-nographic", "-no-reboot", "-serial", "stdio"]
        machine += ["-kernel", str(kernel()), "-initrd", str(files)]
        machine += ["-append", "console=ttyAMA0 rdinit=/start quiet panic=-1"]
        try:
            done = subprocess.run(
                machine,
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_PATIENCE_S,
            )
        except subprocess.TimeoutExpired:
            raise ToolError(f"the machine for arm64 did not end within {_PATIENCE_S:.0f} s") from None
    printed, ended, code = done.stdout.partition(f"{_ENDED} ")
    if not ended or code.split()[0] != "0":
        raise ToolError(f"{' '.join(words)} failed for arm64: {(done.stderr + printed)[-1500:]}")
    return printed
