from __future__ import annotations

from pathlib import Path

import pytest

from lookout.video.files import VideoReader
from lookout.video.files.ranged import RangedSource
from lookout.video.sandbox import SandboxedReader, open_recording
from lookout.video.sandbox.jobs import SampleRequest
from lookout.video.sandbox.reply_reader import SamplesReply
from lookout.video.segments import CodecError, Reason
from tests.unit.video.files.test_reader import SIZE, clip, served


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    path.write_bytes(clip("open"))
    return path


@pytest.mark.slow
def test_the_sandbox_gives_the_same_frames(file: Path) -> None:
    with VideoReader(file) as plain, SandboxedReader(file, workers=2) as reader:
        assert reader.facts == plain.facts
        assert reader.times_us.tolist() == plain.times_us.tolist()
        assert reader.size == plain.size
        for fps, start in ((10.0, 0), (1.0, 2_500_000)):
            truth = plain.read(fps, start_us=start, size=SIZE)
            got = reader.read(fps, start_us=start, size=SIZE)
            assert (got.pixels == truth.pixels).all()
            assert (got.times_us == truth.times_us).all()
        times = [8_000_000, 0, 0, 3_333_333]
        assert (
            reader.read(times_us=times, size=SIZE).pixels == plain.read(times_us=times, size=SIZE).pixels
        ).all()
        assert len(reader._pool.pids()) <= 2


@pytest.mark.slow
def test_a_piece_that_kills_its_decoder_is_a_gap(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool's own tests kill real workers; here one piece is said to have done it."""
    with VideoReader(file) as plain:
        truth = plain.read(2, size=SIZE)
    with SandboxedReader(file, workers=2) as reader:
        real = reader._pool.recording_sample

        def deadly(request: SampleRequest, source: RangedSource | None = None) -> SamplesReply:
            if any(pick.time_us == 4_000_000 for pick in request.picks):
                raise CodecError(Reason.POISON, "the decoder failed twice on it")
            return real(request)

        monkeypatch.setattr(reader._pool, "recording_sample", deadly)
        got = reader.read(2, size=SIZE)
    (gap,) = got.gaps
    assert gap.start_us <= 4_000_000 < gap.end_us
    assert "failed twice" in gap.reason
    kept = [i for i, t in enumerate(truth.times_us) if not gap.start_us <= t < gap.end_us]
    assert 0 < len(kept) < len(truth)
    assert (got.pixels == truth.pixels[kept]).all()


def test_a_sampling_may_be_left_after_its_first_frame(file: Path) -> None:
    with SandboxedReader(file, workers=1) as reader, reader.sample(10, size=SIZE) as frames:
        assert next(iter(frames)).time_us == 0


def test_a_url_is_downloaded_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    seen: list[tuple[int, int]] = []
    with (
        served(clip("open")) as (url, _),
        open_recording(
            url, sandbox=True, workers=1, progress=lambda done, size: seen.append((done, size))
        ) as reader,
    ):
        assert reader.facts.name == url
        assert len(reader.read(1, size=SIZE)) == 10
        assert list(tmp_path.glob("lookout-recording-*"))
    assert seen[-1] == (len(clip("open")),) * 2
    assert not list(tmp_path.glob("lookout-recording-*"))


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CodecError, match="No such file"):
        SandboxedReader(tmp_path / "nothing.mp4")
    hostile = tmp_path / "list.mp4"
    hostile.write_text("ffconcat version 1.0\nfile /etc/passwd\n")
    with pytest.raises(CodecError) as caught:
        SandboxedReader(hostile, workers=1)
    assert caught.value.reason is Reason.UNREADABLE
    with pytest.raises(CodecError, match="only files and URLs"), open_recording(b"bytes", sandbox=True):
        pass
