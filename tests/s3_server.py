"""A real S3 server on this machine: VersityGW over a folder, built from its Go module.

`python -m tests.s3_server` builds it: a test that had to would run out of its time on a busy machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import urllib.error
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from filelock import FileLock

from lookout.local import free_ports
from lookout.local.addresses import cache_folder
from tests.eventually import eventually
from tests.local_http import open_local

MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.0.14"
ACCESS, SECRET = "tests", "a-secret-of-the-tests"
BUCKET = "chapters"
_BUILD_S = 1200.0


def find_server() -> Path | None:
    """The server's program: on PATH, in the cache, or built into it (minutes of CPU, once).

    None where there is no Go.
    """
    if binary := shutil.which("versitygw"):
        return Path(binary)
    folder = cache_folder() / "bin"
    program = folder / "versitygw"
    if program.exists():
        return program
    if shutil.which("go") is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "versitygw.lock"):
        if not program.exists():
            environment = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"}
            command = ["go", "install", "-ldflags=-s -w", MODULE]
            subprocess.run(command, env=environment, check=True, timeout=_BUILD_S, capture_output=True)
    return program


class S3Server:
    """One bucket of files under a folder; killed and started again it has what it had.

    Args:
        folder: Where objects lie as files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secret = SECRET  # from its next start on
        (folder / BUCKET).mkdir(parents=True)
        (self.port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """How clients reach it, as the chart's containers are told."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": self.secret,
        }

    def start(self) -> None:
        """Start it, and wait until it answers."""
        program = find_server()
        if program is None:
            pytest.skip("no S3 server: neither versitygw nor Go, which builds it, is on PATH")
        self._process = subprocess.Popen(
            [str(program), "--port", f"127.0.0.1:{self.port}", "posix", str(self.folder)],
            env={**os.environ, "ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": self.secret},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        eventually(self._answers)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with open_local(f"http://127.0.0.1:{self.port}/", timeout=2.0):
                return True
        except urllib.error.HTTPError:
            return True  # a refusal without credentials
        except OSError:
            return False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


if __name__ == "__main__":
    find_server()
