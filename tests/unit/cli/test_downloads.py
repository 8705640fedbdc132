"""Downloads of `lookout analyze URL`: what was stopped goes on, what is whole is not fetched again."""

from __future__ import annotations

import errno
import os
import random
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lookout.cli.downloads import CACHE_S, Downloads
from lookout.video.files import UrlSource
from lookout.video.segments import CodecError
from tests.eventually import eventually

PIECE = 1 << 16
DATA = random.Random(7).randbytes(10 * PIECE + 123)


class _Recordings(BaseHTTPRequestHandler):
    """Serves `data` by RFC 9110: ranges, If-Range; breaks off where it is told."""

    server: Any

    def do_GET(self) -> None:
        host, data = self.server, self.server.data
        wanted, condition = self.headers.get("range", ""), self.headers.get("if-range")
        first, last = (int(n) for n in wanted.removeprefix("bytes=").split("-"))
        ranged = host.ranges and condition in (None, host.tag)
        body = data[first : last + 1] if ranged else data
        host.asked.append((first if ranged else None, condition))
        self.send_response(206 if ranged else 200)
        if ranged:
            self.send_header("content-range", f"bytes {first}-{first + len(body) - 1}/{len(data)}")
        if host.tag:
            self.send_header("etag", host.tag)
        self.send_header("content-length", str(len(body)))
        if host.breaks and len(body) > 1:
            body = body[: host.breaks.pop(0)]
        host.sent += len(body)  # counted before the client can know
        self.end_headers()
        stalls = host.sent >= host.stalls_at
        try:
            self.wfile.write(body[: len(body) // 2] if stalls else body)
            if stalls:
                host.stalled.set()
                host.closing.wait(60)
        except OSError:  # the client has gone
            pass

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(data: bytes = DATA, *, ranges: bool = True, tag: str = '"one"') -> Iterator[tuple[str, Any]]:
    host: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Recordings)
    host.data, host.ranges, host.tag = data, ranges, tag
    host.asked, host.breaks, host.sent = [], [], 0
    host.stalls_at, host.stalled, host.closing = 1 << 60, threading.Event(), threading.Event()
    thread = threading.Thread(target=host.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{host.server_port}/clip.mp4?key=canary", host
    finally:
        host.closing.set()
        host.shutdown()
        host.server_close()
        thread.join()


def read(folder: Path, url: str, notices: list[str] | None = None, **how: Any) -> bytes:
    source = UrlSource(url, piece=PIECE)
    notice = [].append if notices is None else notices.append
    limit = {"limit": how.pop("limit")} if "limit" in how else {}
    with Downloads(folder, **limit).recording(source, notice=notice, **how) as file:
        return file.path.read_bytes()


def stop_after(pieces: int) -> Any:
    """A progress that stops the run as Ctrl-C does."""

    def progress(done: int, size: int) -> None:
        if done >= pieces * PIECE:
            raise KeyboardInterrupt

    return progress


def stopped(folder: Path, url: str, pieces: int = 4) -> None:
    with pytest.raises(KeyboardInterrupt):
        read(folder, url, progress=stop_after(pieces))


@pytest.mark.slow
def test_a_connection_that_breaks_off_goes_on_at_the_byte_it_reached(tmp_path: Path) -> None:
    with served() as (url, host):
        host.breaks = [PIECE, 1000, 0, 500, 0]  # more than break off in a row
        assert read(tmp_path, url) == DATA
        assert host.sent == len(DATA)
        assert (PIECE + 1000, '"one"') in host.asked
        assert (PIECE + 1500, '"one"') in host.asked


@pytest.mark.slow
def test_a_server_that_breaks_off_each_time_is_one_error_and_loses_no_piece(tmp_path: Path) -> None:
    with served() as (url, host):
        host.breaks = [PIECE, PIECE, 0, 0, 0]
        with pytest.raises(CodecError, match="cannot be read"):
            read(tmp_path, url)
        assert not host.breaks
        assert read(tmp_path, url) == DATA
        assert host.sent <= len(DATA) + 1


@pytest.mark.slow
def test_without_ranges_a_connection_that_breaks_off_starts_again(tmp_path: Path) -> None:
    with served(ranges=False) as (url, host):
        host.breaks = [3 * PIECE, len(DATA)]
        assert read(tmp_path, url) == DATA
        assert host.sent == len(DATA) + 3 * PIECE


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    notices: list[str] = []
    with served() as (url, host):
        stopped(tmp_path, url)
        assert read(tmp_path, url, notices) == DATA
        assert host.sent <= len(DATA) + PIECE
    assert not notices


@pytest.mark.slow
def test_a_killed_run_goes_on_and_never_passes_for_whole(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from lookout.cli.downloads import Downloads; "
        "from lookout.video.files import UrlSource\n"
        f"with Downloads(Path(sys.argv[1])).recording(UrlSource(sys.argv[2], piece={PIECE})): pass"
    )
    with served() as (url, host):
        host.stalls_at = 4 * PIECE
        run = subprocess.Popen([sys.executable, "-c", script, str(tmp_path), url])
        try:
            assert host.stalled.wait(60)
            eventually(lambda: any(file.stat().st_size >= 3 * PIECE for file in tmp_path.glob("*/*.part")))
        finally:
            run.send_signal(signal.SIGKILL)
            run.wait()
        host.stalls_at = 1 << 60
        assert not list(tmp_path.glob("*/recording"))
        assert read(tmp_path, url) == DATA
        assert host.sent <= len(DATA) + PIECE + 1


@pytest.mark.parametrize("ranges", [True, False])
def test_a_second_question_downloads_nothing(tmp_path: Path, ranges: bool) -> None:
    with served(ranges=ranges) as (url, host):
        assert read(tmp_path, url) == DATA
        host.sent = 0
        requests = len(host.asked)
        notices: list[str] = []
        assert read(tmp_path, url, notices) == DATA
        assert len(host.asked) == requests + 1
        assert not ranges or host.sent == 1
    assert not notices


@pytest.mark.parametrize("whole", [True, False])
def test_a_recording_that_changed_between_two_runs_is_named_and_fetched_again(
    tmp_path: Path, whole: bool
) -> None:
    with served() as (url, host):
        if whole:
            read(tmp_path, url)
        else:
            stopped(tmp_path, url)
        host.data, host.tag = DATA[::-1], '"two"'
        notices: list[str] = []
        assert read(tmp_path, url, notices) == DATA[::-1]
    (notice,) = notices
    assert 'changed since it was downloaded (its version was "one", now "two")' in notice
    assert "canary" not in notice


def test_a_recording_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    with served() as (url, host):

        def change(done: int, size: int) -> None:
            host.data, host.tag = DATA[::-1], '"two"'

        with pytest.raises(CodecError, match=r'changed while it was read: its version was "one", now "two"'):
            read(tmp_path, url, progress=change)
        assert read(tmp_path, url) == DATA[::-1]


@pytest.mark.parametrize(("ranges", "tag"), [(True, ""), (True, 'W/"one"'), (False, "")])
def test_bytes_that_no_version_names_are_not_taken_again(tmp_path: Path, ranges: bool, tag: str) -> None:
    with served(ranges=ranges, tag=tag) as (url, host):
        stopped(tmp_path, url)
        host.data = DATA[::-1]
        assert read(tmp_path, url) == DATA[::-1]
    assert not list(tmp_path.iterdir())


def test_fresh_starts_again(tmp_path: Path) -> None:
    with served() as (url, host):
        read(tmp_path, url)
        assert read(tmp_path, url, fresh=True) == DATA
        assert host.sent == 2 * len(DATA)


@pytest.mark.slow
def test_a_full_disk_is_one_error_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, room = os.write, [5 * PIECE + 100]

    def write(handle: int, data: Any) -> int:
        if len(data) < 1000:  # the version's file, and pieces' ends
            return real(handle, data)
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = real(handle, data[: room[0]])
        room[0] -= count
        return count

    with served() as (url, host):
        monkeypatch.setattr(os, "write", write)
        with pytest.raises(CodecError, match=r"cannot be stored .*No space left on device"):
            read(tmp_path, url)
        monkeypatch.undo()
        assert [file.stat().st_size for file in tmp_path.glob("*/*.part")] == [5 * PIECE + 100]
        assert read(tmp_path, url) == DATA
        assert host.sent <= len(DATA) + PIECE + 1


@pytest.mark.slow
def test_a_run_beside_one_that_downloads_takes_a_file_of_its_own(tmp_path: Path) -> None:
    with served() as (url, host):
        inner: list[bytes] = []

        def beside(done: int, size: int) -> None:
            if not inner:
                inner.append(read(tmp_path, url))

        assert read(tmp_path, url, progress=beside) == DATA
        assert inner == [DATA]
        host.sent = 0
        with Downloads(tmp_path).recording(UrlSource(url, piece=PIECE)) as first:
            assert read(tmp_path, url) == DATA  # both read the one download
            assert read(tmp_path, url, fresh=True) == DATA  # and this one disturbs neither
            assert first.path.read_bytes() == DATA
        assert host.sent == len(DATA) + 2


@pytest.mark.slow
def test_the_oldest_downloads_go_beyond_the_limit_and_all_after_a_day(tmp_path: Path) -> None:
    def wholes() -> int:
        return len(list(tmp_path.glob("*/recording")))

    with served() as (url, host):
        for number in range(3):
            read(tmp_path, f"{url}&{number}", limit=2 * len(DATA))
        assert wholes() == 2
        host.sent = 0
        assert read(tmp_path, f"{url}&2", limit=2 * len(DATA)) == DATA
        assert host.sent == 1
        read(tmp_path, f"{url}&3", limit=len(DATA) - 1)
        assert not wholes()
        read(tmp_path, url)
        later = max(entry.stat().st_mtime for entry in tmp_path.iterdir()) + CACHE_S + 1
        with Downloads(tmp_path, now=lambda: later).recording(UrlSource(f"{url}&4", piece=PIECE)):
            assert wholes() == 1


def test_downloads_are_their_owners_alone_and_name_no_address(tmp_path: Path) -> None:
    with served() as (url, _):
        read(tmp_path / "downloads", url)
    files = [path for path in (tmp_path / "downloads").rglob("*") if path.is_file()]
    assert {file.name for file in files} == {"recording", "version.json"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert {stat.S_IMODE(file.parent.stat().st_mode) for file in files} == {0o700}
    assert not any(b"canary" in file.read_bytes() for file in files)
