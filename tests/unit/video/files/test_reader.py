from __future__ import annotations

import hashlib
import io
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from lookout.video.files import UrlSource, VideoReader
from lookout.video.motion import Fit
from lookout.video.motion.types import U8
from lookout.video.sandbox import downloaded, open_recording
from lookout.video.segments import CodecError, Reason
from lookout.video.segments.container import Video
from lookout.video.segments.picture import Painter, frame_geometry
from tests.unit.video.segments.clips import encode, without_packets

SIZE = (24, 32)
OPEN_GOP = {"x264-params": "open-gop=1:bframes=3:b-adapt=2:keyint=12:min-keyint=12:scenecut=0"}
ONE_GOP = {"x264-params": "bframes=2:keyint=250:min-keyint=250:scenecut=0"}


@cache
def clip(kind: str) -> bytes:
    options = {"open": OPEN_GOP, "one": ONE_GOP}[kind]
    return encode("mp4", frames=90, speed=1, options=options)


@cache
def every_frame(kind: str) -> list[U8]:
    """All frames in presentation order, decoded one after the other with no trick at all."""
    painter = Painter()
    with Video(clip(kind), vectors=False) as video:
        return [painter.paint(f, frame_geometry(f, SIZE[1], SIZE[0], Fit.STRETCH)) for f in video.frames()]


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(("open", "one")),
    st.floats(0.2, 12),
    st.integers(1, 5),
    st.integers(0, 8_000_000),
    st.integers(1, 9_000_000),
)
def test_every_rate_range_and_thread_count_equals_sequential_decoding(
    kind: str, fps: float, threads: int, start_us: int, length_us: int
) -> None:
    with VideoReader(clip(kind)) as reader:
        picks = reader.picks(fps, start_us=start_us, end_us=start_us + length_us)
        got = reader.read(fps, start_us=start_us, end_us=start_us + length_us, size=SIZE, threads=threads)
    assert not got.gaps
    assert got.times_us.tolist() == [pick.time_us for pick in picks]
    for row, pick in enumerate(picks):
        assert (got.pixels[row] == every_frame(kind)[pick.index]).all()


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(("open", "one")),
    st.lists(st.integers(0, 8_999_999), min_size=1, max_size=12),
    st.integers(1, 4),
)
def test_explicit_times_give_the_frame_shown_then(kind: str, times: list[int], threads: int) -> None:
    with VideoReader(clip(kind)) as reader:
        frame_times = reader.times_us
        got = reader.read(times_us=times, size=SIZE, threads=threads)
    assert len(got) == len(times)
    for row, time in enumerate(times):
        index = max(i for i, t in enumerate(frame_times) if t <= time)
        assert got.times_us[row] == frame_times[index]
        assert (got.pixels[row] == every_frame(kind)[index]).all()


def test_a_reader_is_read_as_often_as_wanted() -> None:
    with VideoReader(clip("open")) as reader:
        first, second = reader.read(2, size=SIZE), reader.read(2, size=SIZE)
        assert len(reader) == 90
        assert reader.facts.duration_us == 9_000_000
    assert (first.pixels == second.pixels).all()


def test_progress_counts_to_the_end() -> None:
    seen: list[tuple[int, int]] = []
    with VideoReader(clip("open")) as reader:
        reader.read(1, size=SIZE, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i + 1, 10) for i in range(10)]


def test_a_plan_cut_in_pieces_gives_the_same_frames() -> None:
    with VideoReader(clip("open")) as reader:
        picks = reader.picks(4)
        whole = reader.read(4, size=SIZE)
        pieces = [
            frame.pixels
            for i in range(0, len(picks), 7)
            for frame in reader.sample(picks=picks[i : i + 7], size=SIZE)
        ]
    assert (np.stack(pieces) == whole.pixels).all()


def test_the_own_size_is_upright(footage: Path) -> None:
    with VideoReader(footage / "odd/decord_rot90.mov") as reader:
        height, width = reader.size
        assert height != width
        assert (height, width) == (reader.facts.width, reader.facts.height)
        assert next(iter(reader.sample(0.5))).pixels.shape == (height, width, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one of fps"),
        ({"fps": 1, "times_us": [0]}, "exactly one of fps"),
        ({"fps": 0}, "fps=0 must be above 0"),
        ({"fps": 1, "start_us": 5, "end_us": 5}, "ends"),
        ({"times_us": [9_000_000]}, "no frame at 9 s"),
        ({"times_us": [-1]}, "no frame at"),
    ],
)
def test_requests_that_make_no_sense(arguments: dict[str, object], message: str) -> None:
    with VideoReader(clip("open")) as reader, pytest.raises(CodecError, match=message) as caught:
        reader.picks(**arguments)  # type: ignore[arg-type]
    assert caught.value.reason is Reason.REQUEST


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda reader, value: reader.picks(fps=value), "fps"),
        (lambda reader, value: reader.picks(fps=2, start_us=value), "start_us"),
        (lambda reader, value: reader.picks(fps=2, end_us=value), "end_us"),
        (lambda reader, value: reader.read(times_s=[value]), "times_s"),
        (lambda reader, value: reader.read(fps=2, threads=value), "threads"),
        (lambda reader, value: reader.read(fps=2, size=(value, 8)), "height in size"),
        (lambda reader, value: reader.sample(fps=2, lookahead=value), "lookahead"),
        (lambda reader, value: reader.clip(0, value), "end_us"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_by_its_name(
    call: Callable[[VideoReader, object], object], name: str
) -> None:
    with VideoReader(clip("open")) as reader:
        for value in (float("inf"), float("nan"), "two", 10**5000):
            with pytest.raises(CodecError, match=name):
                call(reader, value)


def test_a_damaged_group_becomes_a_named_gap() -> None:
    """Every packet of one closed group is overwritten: the other groups are given, the gap has its times."""
    closed = {"x264-params": "bframes=0:keyint=10:min-keyint=10:scenecut=0"}
    data = encode("mp4", frames=90, speed=1, options=closed)
    with VideoReader(data) as reader:
        whole = reader.read(10, size=SIZE)
    with VideoReader(without_packets(data, 30, 50)) as reader:
        got = reader.read(10, size=SIZE, threads=3)
    assert [(gap.start_us, gap.end_us, gap.samples) for gap in got.gaps] == [(3_000_000, 5_000_000, 20)]
    kept = [i for i in range(90) if not 30 <= i < 50]
    assert got.times_us.tolist() == [i * 100_000 for i in kept]
    assert (got.pixels == whole.pixels[kept]).all()


@pytest.mark.parametrize("lookahead", [1, 3])
def test_a_gap_does_not_stop_a_reader_that_lets_few_samples_wait(lookahead: int) -> None:
    """Damage that reaches the group before makes the file be decoded in order: what is missing must be known
    before later samples wait for room."""
    closed = {"x264-params": "bframes=0:keyint=10:min-keyint=10:scenecut=0"}
    data = without_packets(encode("mp4", frames=90, speed=1, options=closed), 30, 50)
    with VideoReader(data) as reader, reader.sample(10, size=SIZE, lookahead=lookahead, threads=2) as frames:
        assert [frame.index for frame in frames] == [i for i in range(90) if not 30 <= i < 50]
        assert [gap.samples for gap in frames.gaps] == [20]


def test_a_file_that_breaks_off_says_so(footage: Path) -> None:
    with VideoReader(footage / "derived/truncated_faststart.mp4") as reader:
        got = reader.read(2, size=SIZE)
        facts = reader.facts
    assert len(got) > 0
    assert "the file breaks off: the container lists" in got.gaps[-1].reason
    assert got.gaps[-1].end_us == facts.promised_us > facts.duration_us
    with VideoReader(footage / "derived/fall_hevc.mp4") as reader:
        assert not reader.read(2, size=SIZE).gaps


# URLs, from a server on this machine.


class _Server(BaseHTTPRequestHandler):
    data = b""
    ranges = True
    tag = "one"
    kind = "video/mp4"
    status = 200
    more: ClassVar[dict[str, str]] = {}
    asked: list[str]

    def do_GET(self) -> None:
        asked = self.headers.get("range", "")
        type(self).asked.append(asked)
        if not self.ranges:
            self._answer(self.status, self.data, {"content-type": self.kind})
            return
        first, last = asked.removeprefix("bytes=").split("-")
        body = self.data[int(first) : int(last) + 1]
        self._answer(
            206,
            body,
            {"content-range": f"bytes {first}-{last}/{len(self.data)}", "etag": self.tag},
        )

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "content-length": str(len(body)), **self.more}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(data: bytes, **how: object) -> Iterator[tuple[str, type[_Server]]]:
    kind = type("Served", (_Server,), {"data": data, "asked": [], **how})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/clip.mp4", kind
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_url_gives_the_same_frames_and_is_read_in_ranges() -> None:
    data = clip("open")
    with VideoReader(data) as reader:
        truth = reader.read(2, size=SIZE)
    with served(data) as (url, server), VideoReader(url) as reader:
        got = reader.read(2, size=SIZE, threads=3)
        assert all(asked.startswith("bytes=") for asked in server.asked)
    assert (got.pixels == truth.pixels).all()


def test_an_encoded_answer_is_named() -> None:
    with (
        served(clip("open"), more={"content-encoding": "gzip"}) as (url, _),
        pytest.raises(CodecError, match="content encoding gzip"),
    ):
        VideoReader(url)


def _pipe(folder: Path) -> str:
    os.mkfifo(folder / "pipe.mp4")
    return str(folder / "pipe.mp4")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (_pipe, "not a regular file"),
        (lambda _: "/dev/zero", "not a regular file"),
        (lambda _: "/proc/self/mem", "its size cannot be determined|empty: 0 bytes"),
        (lambda _: "a\0b", "null byte"),
        (lambda _: "", "is empty"),
    ],
)
@pytest.mark.parametrize("sandbox", [False, True])
def test_what_is_no_file_is_refused_at_once(
    name: Callable[[Path], str], why: str, sandbox: bool, tmp_path: Path
) -> None:
    with pytest.raises(CodecError, match=why), open_recording(name(tmp_path), sandbox=sandbox):
        pass


def test_a_name_in_another_encoding(tmp_path: Path) -> None:
    path = Path(os.fsdecode(bytes(tmp_path) + b"/\xff.mp4"))
    path.write_bytes(clip("open"))
    with VideoReader(path) as reader:
        assert len(reader) > 0
    with open_recording(path, sandbox=True) as confined:
        assert len(confined) > 0


def test_a_url_is_downloaded_once_into_a_file_that_goes() -> None:
    with served(clip("open")) as (url, _), downloaded(UrlSource(url, piece=4096)) as file:
        assert file.name == url
        assert file.path.read_bytes() == clip("open")
        with VideoReader(file) as reader:
            assert reader.facts.name == url
    assert not file.path.exists()


def test_a_url_keeps_few_pieces_in_memory() -> None:
    data = clip("open")
    with served(data) as (url, _):
        source = UrlSource(url, piece=4096, held=3)
        with source.open() as file:
            read = b"".join(iter(lambda: file.read(10_000), b""))
        assert read == data
        assert len(source._pieces) == 3
        assert source.fetched == len(data)
        source.close()


def test_a_url_without_ranges_is_fetched_whole_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with VideoReader(clip("open")) as reader:
        truth = reader.read(2, size=SIZE).pixels
    with served(clip("open"), ranges=False) as (url, server):
        with VideoReader(url) as reader:
            assert (reader.read(2, size=SIZE, threads=3).pixels == truth).all()
        with downloaded(UrlSource(url)) as file:
            assert file.path.read_bytes() == clip("open")
        assert len(server.asked) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({"kind": "text/html; charset=utf-8", "data": b"<html>log in"}, "a web page, perhaps a login form"),
        ({"data": b""}, "the server sent no bytes"),
        ({"status": 404}, "status 404"),
        ({"status": 302, "more": {"location": "/clip.mp4"}}, "redirects"),
        ({"more": {"content-length": "1" + "0" * 15}}, "has room for"),
    ],
)
def test_urls_that_cannot_be_read_say_why(how: dict[str, Any], problem: str) -> None:
    with (
        served(**{"data": clip("open"), "ranges": False, **how}) as (url, _),
        pytest.raises(CodecError, match=problem) as caught,
    ):
        VideoReader(url)
    assert caught.value.reason is Reason.UNREADABLE
    assert url in caught.value.detail


@pytest.mark.slow
def test_a_server_that_is_not_there() -> None:
    with pytest.raises(CodecError, match="cannot be read"):
        VideoReader("http://127.0.0.1:9/nothing.mp4")


def test_a_url_whose_file_changes_is_refused() -> None:
    with served(clip("open")) as (url, server):
        source = UrlSource(url, piece=4096, held=3)
        source.piece(0)
        server.tag = "two"
        with pytest.raises(CodecError, match="changed while it was read"):
            source.piece(1)
        source.close()


def test_the_frames_of_the_clip_differ() -> None:
    """The oracle above would pass on a still picture."""
    assert len({hashlib.sha256(f.tobytes()).digest() for f in every_frame("open")}) > 80


def test_frames_are_had_by_index_slice_and_iteration() -> None:
    with VideoReader(clip("open")) as reader:
        every = reader.read(indices=range(len(reader))).pixels
        assert (reader[0] == every[0]).all()
        assert (reader[-1] == every[89]).all()
        assert (reader[np.int64(7)] == every[7]).all()
        assert (reader[10:30:7] == every[10:30:7]).all()
        assert (reader[::-30] == every[::-30]).all()
        assert reader[5:5].shape == (0, *reader.size, 3)
        assert len(reader) == 90
        assert all((frame == other).all() for frame, other in zip(reader, every, strict=True))
        assert (reader.fps, reader.duration) == (10.0, 9.0)
        with pytest.raises(IndexError):
            reader[90]
        rows = [3, 3, -1, 60]
        assert (reader.read(indices=rows).pixels == every[rows]).all()
        seconds = [0.35, 8.99, 0.0]
        assert (reader.read(times_s=seconds).pixels == every[[3, 89, 0]]).all()
        assert reader.read(times_s=seconds).times_us.tolist() == [300_000, 8_900_000, 0]


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"times_us": [0.5, 1.0]}, "times_us must be a list of whole microseconds; times_s takes seconds"),
        ({"times_us": [[1, 2]]}, "times_us must be"),
        ({"times_us": ["1"]}, "times_us must be"),
        ({"times_s": [float("nan")]}, "not a time"),
        ({"times_s": [9.0]}, "no frame at 9 s"),
        ({"indices": [0.0]}, "indices must be"),
        ({"indices": [90]}, "90 frames, but no frame 90"),
        ({"indices": [1], "times_s": [1.0]}, "give exactly one"),
        ({"fps": 1.0, "indices": [1]}, "give exactly one"),
    ],
)
def test_what_is_asked_wrongly_is_named(asked: dict[str, Any], problem: str) -> None:
    with VideoReader(clip("open")) as reader:
        for ask in (reader.read, reader.picks):
            with pytest.raises(CodecError, match=problem) as caught:
                ask(**asked)
            assert caught.value.reason is Reason.REQUEST


def test_what_is_no_index_is_named_so() -> None:
    with VideoReader(clip("open")) as reader:
        with pytest.raises(IndexError, match="the bytes has 90 frames, but no frame 90"):
            reader[90]
        with pytest.raises(IndexError, match="but no frame -91"):
            reader[-91]
        with pytest.raises(IndexError, match="but no frame a number with thousands of digits"):
            reader[10**5000]
        for wrong in ([1, 2], 1.5, "a", None, (slice(1, 2), 3)):
            with pytest.raises(
                TypeError, match=r"a frame.s index is a whole number or a slice, not .*indices="
            ):
                reader[wrong]  # type: ignore[index]
        with pytest.raises(TypeError):
            5 in reader  # type: ignore[operator]  # noqa: B015
        assert "data" not in repr(reader.clip(0, 1_000_000))


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_file_object_that_is_closed_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(clip("open"))
    file = path.open("rb") if kind == "file" else io.BytesIO(clip("open"))
    file.close()
    with pytest.raises(CodecError, match="a file object must be open for reading bytes, and seekable"):
        VideoReader(file)


def test_a_file_object_that_reads_nothing_is_refused(tmp_path: Path) -> None:
    class Half:
        def read(self, size: int = -1) -> bytes:
            return b""

    with (tmp_path / "new.mp4").open("wb") as file:
        for wrong in (file, Half()):
            with pytest.raises(
                CodecError, match="a file object must be open for reading bytes, and seekable"
            ):
                VideoReader(wrong)  # type: ignore[arg-type]


def test_file_objects_are_read_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(clip("open"))
    with VideoReader(path) as reader:
        truth = reader.read(3, size=SIZE).pixels

    class Remote(io.BytesIO):
        """As a file system library gives it: no descriptor, one position."""

        def fileno(self) -> int:
            raise io.UnsupportedOperation

    with path.open("rb") as file:
        file.seek(77)
        with VideoReader(file) as reader:
            assert (reader.read(3, size=SIZE, threads=3).pixels == truth).all()
        assert file.tell() == 77
        assert reader.facts.name == str(path)
    remote: Any = io.BufferedReader(Remote(path.read_bytes()))  # type: ignore[arg-type]
    for other in (io.BytesIO(path.read_bytes()), remote, bytearray(path.read_bytes())):
        with VideoReader(other) as reader:
            assert (reader.read(3, size=SIZE, threads=3).pixels == truth).all()
    with path.open() as text, pytest.raises(CodecError, match="reading bytes"):
        VideoReader(text)  # type: ignore[arg-type]


class Clips(torch.utils.data.Dataset[np.ndarray]):
    """Frames of one reader, as a training loop reads them."""

    def __init__(self, reader: VideoReader) -> None:
        self.reader = reader

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.reader.read(indices=[index], size=SIZE, threads=1).pixels[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "used", "workers"),
    [
        ("fork", False, 2),
        ("fork", True, 2),
        # A spawned one imports torch for itself.
        pytest.param("spawn", True, 1, marks=pytest.mark.long),
    ],
)
def test_workers_of_a_loader_read_for_themselves(
    tmp_path: Path, start: str, used: bool, workers: int
) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(clip("open"))
    with VideoReader(path) as reader:
        if used:
            reader.read(1, size=SIZE)
        loader = torch.utils.data.DataLoader(
            Clips(reader), batch_size=9, num_workers=workers, multiprocessing_context=start
        )
        read = np.concatenate([batch.numpy() for batch in loader])
        assert (read == np.stack(every_frame("open"))).all()
        assert (reader.read(indices=[5], size=SIZE).pixels[0] == read[5]).all()


def test_a_reader_is_copied_by_what_it_reads(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(clip("open"))
    with path.open("rb") as file:
        for given in (path, clip("open"), file):
            with VideoReader(given) as reader, pickle.loads(pickle.dumps(reader)) as again:
                assert (again[7] == reader[7]).all()
    with served(clip("open")) as (url, _), VideoReader(url) as reader:
        assert (pickle.loads(pickle.dumps(reader))[7] == reader[7]).all()


def test_a_closed_recording_reads_nothing_more() -> None:
    reader = VideoReader(clip("one"))
    assert len(reader) == 90
    reader.close()
    uses: list[Callable[[], object]] = [
        lambda: reader[0],
        lambda: reader.read(fps=1.0),
        lambda: next(iter(reader)),
        lambda: reader.clip(0, 1_000_000),
        lambda: reader.size,
    ]
    for use in uses:
        with pytest.raises(CodecError, match="the bytes was closed: open it again") as refusal:
            use()
        assert refusal.value.reason is Reason.CLOSED
    assert len(reader) == 90


def test_frames_that_were_asked_for_end_with_the_recording() -> None:
    with VideoReader(clip("one")) as reader:
        later = reader.sample(fps=1.0)
        begun = iter(reader.sample(fps=5.0))
        next(begun)
    for frames in (later, begun):
        with pytest.raises(CodecError, match="was closed: open it again") as refusal:
            list(frames)
        assert refusal.value.reason is Reason.CLOSED
