"""The broker's disk is full for a while: a small file system of its own, filled to the last byte."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from lookout.local import KafkaServer
from tests.eventually import eventually
from tests.fleet.bench import Bench, running

pytestmark = pytest.mark.fleet

CAMERAS = [f"cam-{number}" for number in range(3)]
DISK = "96m"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory; skipped where none may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=0700", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(ballast: Path) -> None:
    """Write until the disk takes nothing any more."""
    with open(ballast, "wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            while _takes(file, size):
                pass


def _takes(file: IO[bytes], size: int) -> bool:
    """Whether the disk took so many bytes."""
    try:
        return file.write(bytes(size)) == size
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_broker_without_room_loses_and_doubles_nothing(small_disk: Path, prefix: str) -> None:
    ballast = small_disk / "ballast"
    with KafkaServer(small_disk / "kafka") as server, Bench(server.bootstrap, prefix) as bench:
        with running(bench.settings()) as worker:
            _send(bench, 1, 20)
            bench.flush()
            eventually(lambda: bench.counted(CAMERAS, 20))
            fill(ballast)
            _send(bench, 21, 40)  # what the broker does not take is sent again
            eventually(lambda: not server.alive)  # it ends rather than lose records
            eventually(lambda: not worker.health.ready())
            os.unlink(ballast)
            server.start()
            bench.flush()
            eventually(lambda: bench.counted(CAMERAS, 40))
            assert worker.error is None
        bench.assert_counted(CAMERAS, 40)
        assert bench.read("dlq") == []


def _send(bench: Bench, first: int, last: int) -> None:
    for n in range(first, last + 1):
        for camera in CAMERAS:
            bench.send(camera, n, padding="x" * 20_000)
