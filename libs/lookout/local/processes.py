"""Child processes that end with their parent, and temporary folders that are removed with their owner."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from lookout.disk import private_folder, private_opener
from lookout.errors import LookoutError

# Runs in the child before the real program: asks the kernel to kill this process when the thread that started
# it ends, and exits at once if that has already happened. (`preexec_fn` would be unsafe, because librdkafka
# has threads.)
_GUARD = (
    "import ctypes,os,sys;"
    "sys.platform=='linux' and ctypes.CDLL(None).prctl(1,9);"
    "os.getppid()==int(sys.argv[1]) or sys.exit(9);"
    "os.execv(sys.argv[2],sys.argv[2:])"
)

_FIRST_PORT = 10_000  # lower ports are used by well-known services
_OWNER = "owner"
_PREFIX = "lookout-"


class LocalError(LookoutError, RuntimeError):
    """A part of a local fleet could not be started; the message says which part, why and what to do."""


class PortTakenError(LocalError):
    """Another process uses a port that this part needs."""


def guarded(command: Sequence[str | Path]) -> list[str]:
    """Return a command line that runs `command` and kills it when the thread that started it ends, for
    whatever reason.
    """
    return [sys.executable, "-c", _GUARD, str(os.getpid()), *map(str, command)]


class Child:
    """A process in its own group, whose output goes to a log file. It ends when its parent ends.

    It must be started from the main thread, because Linux ties the death signal to the starting *thread*.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise LocalError(
                f"{Path(command[0]).name} must be started from the main thread: "
                "a child started in another thread is killed when that thread ends"
            )
        self.log = log
        private_folder(log.parent)
        with open(log, "ab", opener=private_opener) as out:
            self._process = subprocess.Popen(
                guarded(command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=dict(env) if env is not None else None,
                cwd=cwd,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Return the exit code; None while the process runs, negative for a signal, as in `subprocess`."""
        return self._process.poll()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the process, but not to its group, if it still runs."""
        if self.alive:
            self._process.send_signal(number)

    def stop(self, patience: float = 10.0) -> int:
        """Send SIGTERM and, after `patience` seconds, SIGKILL to the whole group; return the exit code."""
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience)
        return self.kill()

    def kill(self) -> int:
        """Send SIGKILL to the whole group, wait, and return the exit code."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def tail(self, lines: int = 12) -> str:
        """Return the end of the log, for error messages."""
        if not self.log.exists():
            return ""
        text = self.log.read_bytes()[-16_384:].decode(errors="replace")
        return "\n".join(text.rstrip().splitlines()[-lines:])


def ephemeral_ports() -> range:
    """Return this machine's ephemeral ports, which it gives to outgoing connections.

    No server may listen on an ephemeral port. While the server restarts, a client that tries to reach it may
    be given the same port, connect to itself, and keep the port for ever.
    """
    try:
        first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return range(49152, 65536)  # IANA's range, as on macOS
    return range(int(first), int(last) + 1)


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return `count` different ports that are free now, but may be taken before a server starts.

    Raises:
        LocalError: There are too few free ports outside `ephemeral_ports`.
    """
    ephemeral = ephemeral_ports()
    ports = [port for port in range(_FIRST_PORT, 65536) if port not in ephemeral]
    random.SystemRandom().shuffle(ports)
    free = (port for port in ports if port_is_free(port, host))
    picks = list(itertools.islice(free, count))
    if len(picks) < count:
        raise LocalError(
            f"there are fewer than {count} free ports from {_FIRST_PORT} on, outside "
            f"{ephemeral.start}-{ephemeral.stop - 1}"
        )
    return picks


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


_held: dict[Path, IO[str]] = {}


def hold(path: Path, text: str = "") -> None:
    """Create `path` and keep it locked until `release`, or until this process ends for whatever reason.

    The file appears atomically, complete and locked, so that no reader takes it for abandoned.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    file = open(draft, "w", opener=private_opener)  # noqa: SIM115 (held until `release`)
    fcntl.flock(file, fcntl.LOCK_EX)
    file.write(text)
    file.flush()
    # Lock it before giving it its name, so that it is never visible without the lock.
    draft.rename(path)
    _held[path] = file


def release(path: Path) -> None:
    """Remove a file that `hold` created."""
    file = _held.pop(path, None)
    path.unlink(missing_ok=True)
    if file is not None:
        file.close()


def is_held(path: Path) -> bool:
    """Whether the process that locked `path` with `hold` still runs.

    Raises:
        OSError: There is no such file.
    """
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def scratch_folder(name: str) -> Path:
    """Create and return a temporary folder that belongs to this process; first remove folders whose owner is
    gone.
    """
    remove_orphans()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{name}-"))
    hold(folder / _OWNER)
    return folder


def remove_scratch(folder: Path) -> None:
    """Remove a folder that `scratch_folder` made."""
    shutil.rmtree(folder, ignore_errors=True)
    release(folder / _OWNER)


def remove_orphans() -> list[Path]:
    """Remove scratch folders of processes that were killed; return the removed folders."""
    removed = []
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if _orphaned(folder):
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    return removed


def _orphaned(folder: Path) -> bool:
    try:
        return folder.stat().st_uid == os.getuid() and not is_held(folder / _OWNER)
    except OSError:  # no owner's file (yet): keep the folder
        return False
