"""Uploaded recordings: their names, their limits, their end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from lookout.services.gateway.problems import ProblemError
from lookout.services.gateway.uploads import KEPT, Uploads
from lookout.v1.gateway_pb2 import Upload


def take(uploads: Uploads, name: str, *chunks: bytes) -> Upload:
    """Upload a file in chunks."""

    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return asyncio.run(uploads.take(name, body()))


def test_an_upload_is_a_file_that_a_job_can_name(tmp_path: Path) -> None:
    uploads = Uploads(str(tmp_path / "a folder"), 1 << 20)
    first = take(uploads, "yard.mp4", b"one", b"", b"two")
    assert (first.bytes, Path(unquote(urlsplit(first.uri).path)).read_bytes()) == (6, b"onetwo")
    assert take(uploads, "yard.mp4", b"x").uri != first.uri  # nobody writes over another's


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("../../etc/Gate 1.MKV", r"[0-9a-f]{32}-etc-Gate-1\.mkv"),
        ("<b>#?%2e.ts", r"[0-9a-f]{32}-b----2e\.ts"),
        ("監視.webm", r"[0-9a-f]{32}-recording\.webm"),
        (f"{'a' * 300}.avi", r"[0-9a-f]{32}-a{80}\.avi"),
    ],
)
def test_names_lead_nowhere_else(tmp_path: Path, name: str, stored: str) -> None:
    uri = take(Uploads(str(tmp_path), 1 << 20), name, b"x").uri
    assert re.fullmatch(stored, uri.removeprefix(f"{tmp_path.as_uri()}/"))
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["", "mp4", "yard", "yard.txt", "yard.mp4/", ".."])
def test_what_is_no_video_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ProblemError, match=r"name: .* does not end like a video file"):
        take(Uploads(str(tmp_path), 1 << 20), name, b"x")


def test_what_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    uploads = Uploads(str(tmp_path), 10)
    take(uploads, "a.mp4", b"12345")
    with pytest.raises(ProblemError, match="all uploads together may have 10 bytes") as refused:
        take(uploads, "b.mp4", b"123", b"456")
    assert refused.value.status == 413
    with pytest.raises(ProblemError, match="the body is empty"):
        take(uploads, "c.mp4")
    assert [path.name[33:] for path in tmp_path.iterdir()] == ["a.mp4"]
    take(uploads, "d.mp4", b"12345")


def test_uploads_at_the_same_time_share_the_limit(tmp_path: Path) -> None:
    uploads = Uploads(str(tmp_path), 10)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"1234"
        begun.set()
        await go_on.wait()
        yield b"567"

    async def quick() -> AsyncIterator[bytes]:
        yield b"12345"

    async def both() -> None:
        first = asyncio.create_task(uploads.take("slow.mp4", slow()))
        await begun.wait()
        await uploads.take("quick.mp4", quick())
        go_on.set()  # 4 and 5 bytes are there, and 3 more do not fit
        with pytest.raises(ProblemError, match="LOOKOUT_UPLOAD_BYTES"):
            await first
        await uploads.take("again.mp4", quick())

    asyncio.run(both())
    assert sorted(path.name[33:] for path in tmp_path.iterdir()) == ["again.mp4", "quick.mp4"]


def test_an_upload_goes_after_a_week(tmp_path: Path) -> None:
    uploads = Uploads(str(tmp_path), 1 << 20)
    take(uploads, "a.mp4", b"x")
    now = datetime.now(UTC)
    uploads.sweep(now + KEPT - timedelta(minutes=1))
    assert [path.name[33:] for path in tmp_path.iterdir()] == ["a.mp4"]
    uploads.sweep(now + KEPT + timedelta(minutes=1))
    assert not list(tmp_path.iterdir())
