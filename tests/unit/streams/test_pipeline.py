"""What the pipeline of one process watches, and what it calls it."""

from __future__ import annotations

import gc
import io
import os
import pickle
import sys
import tempfile
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest

from lookout import LookoutError, Pipeline, PipelineError
from lookout.past.memory.shelf import entries
from lookout.recordings.analysis import analyze
from lookout.video.files import VideoReader
from lookout.video.segments import CodecError, Reason
from tests.rtsp_player import RtspPlayer
from tests.tiny_models import checkpoint
from tests.unit.video.files.test_reader import served
from tests.unit.video.segments.clips import encode, rest, trimmed

QUESTION = "Is anyone there?"


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return Pipeline(checkpoint("internvl"), [QUESTION], fps=2, stride_s=2, window_s=4)


def watched(pipeline: Pipeline, source: object) -> list[tuple[float, float]]:
    return [(verdict.time, round(verdict.p_yes, 5)) for verdict in pipeline.watch(source)]  # type: ignore[arg-type]


def test_a_verdict_is_not_later_than_the_video(pipeline: Pipeline, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(encode("mp4", frames=53, fps=10, speed=1))
    assert [time for time, _ in watched(pipeline, path)] == [2.0, 4.0, 5.3]
    path.write_bytes(encode("mp4", frames=59, fps=10, speed=1))
    assert [time for time, _ in watched(pipeline, path)] == [2.0, 4.0, 5.9]
    path.write_bytes(encode("mp4", frames=60, fps=10, speed=1))
    assert [time for time, _ in watched(pipeline, path)] == [2.0, 4.0, 6.0]


def test_a_verdict_behind_a_hole_has_the_time_that_analyze_gives(pipeline: Pipeline, tmp_path: Path) -> None:
    """A recorder that records motion alone wrote nothing for 45 seconds."""
    path = tmp_path / "clip.mp4"
    path.write_bytes(encode("mp4", frames=80, gop=10, pts=[100 * i + 45_000 * (i >= 40) for i in range(80)]))
    assert [time for time, _ in watched(pipeline, path)] == pytest.approx([2, 4, 51, 53], abs=0.01)
    with VideoReader(path) as reader:
        assert reader.duration == pytest.approx(53)


def test_short_clips_that_were_joined_are_watched_whole(pipeline: Pipeline, tmp_path: Path) -> None:
    """`cat a.ts b.ts`: the clock of the second begins again, less than five seconds before."""
    path = tmp_path / "clips.ts"
    path.write_bytes(2 * encode("ts", frames=40, gop=10, speed=1))
    assert [time for time, _ in watched(pipeline, path)] == pytest.approx([2, 4, 6, 8], abs=0.01)


def test_what_was_cut_away_at_the_beginning_gives_no_verdict(pipeline: Pipeline, tmp_path: Path) -> None:
    path = tmp_path / "phone.mp4"
    path.write_bytes(trimmed(encode("mp4", frames=53, fps=10, gop=10, speed=1), 1.75))
    times = [time for time, _ in watched(pipeline, path)]
    # Of 5.3 s; the pictures from 1 s to 1.75 s, which are in the file, would add a verdict.
    assert times == [2.0, pytest.approx(3.5, abs=0.1)]


@pytest.mark.slow
def test_a_recording_that_begins_between_keyframes_is_the_one_from_its_first_keyframe_on(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    """Asked as a stream and as a recording; there were two zeros of time."""
    whole = encode("ts", frames=72, fps=10, gop=24, speed=1)
    between, clean = tmp_path / "between.ts", tmp_path / "clean.ts"
    between.write_bytes(rest(whole, "ts", 11))
    clean.write_bytes(rest(whole, "ts", 24))
    assert watched(pipeline, between) == watched(pipeline, clean)
    recordings = [analyze(path, [QUESTION], model=checkpoint("internvl"), fps=2) for path in (between, clean)]
    assert [(recording.seconds, recording.gaps) for recording in recordings] == [(4.8, ())] * 2
    assert recordings[0].parts == recordings[1].parts


@pytest.mark.parametrize("name", ["fps", "stride_s", "window_s", "memory"])
@pytest.mark.parametrize(
    "value", [*map(float, ("inf", "nan", "1e308")), 0, -1, pytest.param(10**5000, id="digits")]
)
def test_numbers_that_make_no_sense_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(LookoutError, match=f"{name}( must|=)"):
        Pipeline(checkpoint("internvl"), [QUESTION], **{name: value})  # type: ignore[arg-type]


def test_a_folder_of_memories_that_is_a_file_is_refused_at_once(tmp_path: Path) -> None:
    (path := tmp_path / "clip.mp4").touch()
    with pytest.raises(PipelineError, match=r"memory_dir is the file .*clip\.mp4: give a folder"):
        Pipeline(checkpoint("internvl"), [QUESTION], memory="2h", memory_dir=path)


def test_a_file_object_that_gives_no_bytes_is_refused(pipeline: Pipeline, tmp_path: Path) -> None:
    path = tmp_path / "clip.ts"
    path.write_bytes(encode("ts", frames=20, fps=10, speed=1))
    with path.open() as text, path.open("ab") as written, path.open("rb") as closed:
        closed.close()
        for file in (io.StringIO("clip"), text, written, closed):
            with pytest.raises(PipelineError, match="must be open for reading bytes"):
                watched(pipeline, file)
    assert len(watched(pipeline, io.BytesIO(path.read_bytes()))) == 1
    with pytest.raises(PipelineError, match="the name of the video is empty"):
        watched(pipeline, "")


@pytest.mark.parametrize("url", ["rtsp://", "rtsp:///yard", "rtsp://user:secret@/yard"])
def test_a_cameras_address_without_a_host_is_told_how_to_write_one(pipeline: Pipeline, url: str) -> None:
    with pytest.raises(CodecError, match="names no host: write it as rtsp://camera/stream") as refusal:
        watched(pipeline, url)
    assert "secret" not in str(refusal.value)


def test_a_pipeline_says_why_it_is_not_pickled(pipeline: Pipeline) -> None:
    with pytest.raises(
        TypeError, match="loaded model and cannot be pickled: create a Pipeline in every process"
    ):
        pickle.dumps(pipeline)


@pytest.mark.slow
def test_files_addresses_and_pipes_give_the_same(pipeline: Pipeline, tmp_path: Path) -> None:
    data = encode("ts", frames=60, fps=10, speed=1)
    path = tmp_path / "clip.ts"
    path.write_bytes(data)
    truth = watched(pipeline, path)
    with served(data) as (url, _):
        assert watched(pipeline, url + "?token=secret") == truth
    with path.open("rb") as file:
        assert watched(pipeline, file) == truth
    read, write = os.pipe()

    def feed() -> None:
        with os.fdopen(write, "wb") as out:
            out.write(data)

    thread = threading.Thread(target=feed)
    thread.start()
    with os.fdopen(read, "rb", buffering=0) as pipe:
        assert watched(pipeline, pipe) == truth
    thread.join()


def test_an_address_that_is_not_read_is_refused_with_the_way(pipeline: Pipeline) -> None:
    with pytest.raises(PipelineError, match="ffmpeg -i rtmp://camera/1 -c copy -f mpegts -"):
        watched(pipeline, "rtmp://guard:password@camera/1")


def test_a_file_that_breaks_off_is_named_behind_its_last_verdict(pipeline: Pipeline, tmp_path: Path) -> None:
    data = encode("fmp4", frames=60, fps=10, speed=1)
    path = tmp_path / "clip.mp4"
    path.write_bytes(data[: 3 * len(data) // 4])
    times: list[float] = []
    with pytest.raises(CodecError, match=r"clip\.mp4 ends unexpectedly: ") as caught:
        times.extend(verdict.time for verdict in pipeline.watch(path))
    assert caught.value.reason is Reason.UNREADABLE
    assert times[0] == 2.0
    assert 3 < times[-1] < 6
    path.write_bytes(data)
    assert [time for time, _ in watched(pipeline, path)] == [2.0, 4.0, 6.0]


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="confinement is Linux's")
def test_a_camera_is_watched_until_its_stream_ends(pipeline: Pipeline) -> None:
    player = RtspPlayer(encode("ts", frames=80, fps=10, gop=10, speed=1), login=("guard", "pass/word"))
    url = player.url.replace("rtsp://", "rtsp://guard:pass%2Fword@")
    verdicts = pipeline.watch(url)
    assert [next(verdicts).time, next(verdicts).time] == [2.0, 4.0]
    (reader,) = [
        child for child in psutil.Process().children() if "lookout.video.sandbox.puller" in child.cmdline()
    ]
    reader.kill()  # as a stream that ends
    with pytest.raises(CodecError, match=r"rtsp://127\.0\.0\.1:\d+/live: .* died of SIGKILL") as caught:
        list(verdicts)
    assert "word" not in str(caught.value)
    player.close()
    with pytest.raises(CodecError, match=r"rtsp://.*: cannot reach") as caught:
        watched(pipeline, url)
    assert "word" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="confinement is Linux's")
@pytest.mark.parametrize(("gop", "bframes"), [(25, 0), (100, 0), (100, 2)])
def test_all_that_a_camera_sent_is_answered_when_it_ends(pipeline: Pipeline, gop: int, bframes: int) -> None:
    """Also where its stream is shorter than a group of pictures."""
    clip = encode("ts", frames=80, fps=10, gop=gop, bframes=bframes, speed=1)
    player = RtspPlayer(clip, once=True)
    times: list[float] = []
    with pytest.raises(CodecError, match="the camera ended the stream"):
        times.extend(verdict.time for verdict in pipeline.watch(player.url))
    player.close()
    assert times == [2.0, 4.0, 6.0, 7.9]  # of its last picture nobody knows whether it came whole


def test_standard_input_is_watched(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "clip.ts"
    path.write_bytes(encode("ts", frames=60, fps=10, speed=1))
    with path.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert [time for time, _ in watched(pipeline, "-")] == [2.0, 4.0, 6.0]


def test_a_webcam_that_is_not_there_is_named(pipeline: Pipeline) -> None:
    with pytest.raises(CodecError, match=r"the webcam /dev/video77 cannot be read \(No such file"):
        watched(pipeline, "/dev/video77")


@pytest.mark.slow
def test_two_files_of_one_stem_are_two_cameras(tmp_path: Path) -> None:
    memories = tmp_path / "memories"
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "clip.mp4").write_bytes(encode("mp4", frames=60, fps=10, speed=1))
    settings = {"fps": 2, "stride_s": 2, "window_s": 4, "memory": "1h", "memory_dir": memories}
    first = Pipeline(checkpoint("internvl"), **settings)  # type: ignore[arg-type]
    for folder in ("a", "b", "a"):
        watched(first, tmp_path / folder / "clip.mp4")
    assert [(found.camera, found.epoch) for found in first.ask(QUESTION)] == [
        ("clip", 0),
        ("clip-2", 0),
        ("clip", 1),
    ]
    first.close()
    second = Pipeline(checkpoint("internvl"), **settings)  # type: ignore[arg-type]
    watched(second, tmp_path / "b" / "clip.mp4")
    second.close()
    assert [entry.camera for entry in entries(memories)] == ["clip", "clip", "clip-2", "clip-3"]


def left_open() -> set[str]:
    """Threads, child processes, open files, and names in the folder of temporary files."""
    gc.collect()
    own = Path("/proc/self")
    threads = {f"thread {thread.name}" for thread in threading.enumerate()}
    children = {f"process {child.pid}" for child in psutil.Process().children()}
    files = set()
    for number in own.joinpath("fd").iterdir():
        try:
            target = number.readlink()
        except FileNotFoundError:  # the listing's own
            continue
        if target.is_file() or ".mp4" in target.name:
            files.add(f"file {target}")
    return (
        threads | children | files | {f"temporary {path}" for path in Path(tempfile.gettempdir()).iterdir()}
    )


def remembering(folder: Path) -> Pipeline:
    """A pipeline that writes its memory into a folder."""
    return Pipeline(
        checkpoint("internvl"), [QUESTION], fps=2, stride_s=2, window_s=4, memory="1h", memory_dir=folder
    )


@pytest.fixture(scope="module")
def eight_seconds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clip that a pipeline has read: libraries and thread pools of torch are loaded, and stay."""
    path = tmp_path_factory.mktemp("clip") / "clip.mp4"
    path.write_bytes(encode("mp4", frames=80, fps=10, speed=1))
    with remembering(path.parent / "past") as pipeline:
        list(pipeline.watch(path))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("how", ["read to the end", "left in the middle", "failed", "never read"])
def test_a_pipeline_leaves_nothing_open(
    how: str, eight_seconds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "tmp"
    own.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    path = eight_seconds
    before = left_open()
    with remembering(tmp_path / "past") as pipeline:
        verdicts = pipeline.watch(path)
        if how == "read to the end":
            assert len(list(verdicts)) == 4
        elif how == "left in the middle":
            next(verdicts)
            assert pipeline._engine.memory()
        elif how == "failed":
            monkeypatch.setattr(pipeline._engine, "run", lambda _: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                next(verdicts)
    assert left_open() <= before
    assert pipeline._engine.memory() == []
    cut_off = how in {"left in the middle", "never read"}
    with pytest.raises(PipelineError, match="closed before") if cut_off else nullcontext():
        assert next(verdicts, None) is None, "a closed pipeline goes on"
    with pytest.raises(PipelineError, match="closed"):
        pipeline.watch(path)


def test_what_is_refused_is_refused_before_the_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "lookout.streams.session.host.load_transformers", lambda *_, **__: pytest.fail("a model was loaded")
    )
    for wrong in (
        {"memory_dir": "x"},
        {"questions": ["What?"]},
        {"questions": "Is a person in view?"},
        {"model": ["Is a person in view?"]},
        {"preset": "none"},
        {"policy": "none"},
        {"stride_s": 1.3},
        {"device": "nowhere"},
    ):
        with pytest.raises(LookoutError) as refusal:
            Pipeline(**wrong)  # type: ignore[arg-type]
        assert isinstance(refusal.value, ValueError)


def test_a_source_that_is_no_file_is_named(pipeline: Pipeline, tmp_path: Path) -> None:
    for source, why in ((tmp_path / "none.mp4", "does not exist"), (tmp_path, "is a folder")):
        with pytest.raises(CodecError, match=why):
            watched(pipeline, source)


def test_a_memory_that_cannot_be_kept_loads_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[object] = []
    monkeypatch.setattr("lookout.streams.pipeline.EngineHost", loaded.append)
    with pytest.raises(LookoutError, match="soon"):
        Pipeline(checkpoint("internvl"), memory="soon")
    assert not loaded


def test_a_video_cut_off_by_closing_is_no_video_that_ends(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(encode("mp4", frames=60, fps=10, speed=1))
    questions: Any = (text for text in [QUESTION])  # given once, as a list is
    pipeline = Pipeline(checkpoint("internvl"), questions, fps=2, stride_s=2, window_s=4)
    begun, unbegun = pipeline.watch(path), pipeline.watch(path)
    assert next(begun).question == QUESTION
    pipeline.close()
    for verdicts in (begun, unbegun):
        with pytest.raises(LookoutError, match="closed before the end of the video"):
            next(verdicts)


@pytest.mark.parametrize("source", [None, 5, ["clip.mp4"], b"clip.mp4"])
def test_what_is_no_video_is_refused_by_what_it_is(pipeline: Pipeline, source: Any) -> None:
    with pytest.raises(LookoutError, match="must be a path, a URL or a file object, not"):
        list(pipeline.watch(source))
