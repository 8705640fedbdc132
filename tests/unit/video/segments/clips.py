"""Small clips encoded on the spot, and gathers to look into a decode with."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from av.bitstream import BitStreamFilterContext

from lookout.video.motion import Basis, FrameInfo, Geometry, Motion, PredictionBlocks, VectorSource
from lookout.video.segments.container import Video
from lookout.video.segments.cutting import REPEAT_HEADERS

U8 = npt.NDArray[np.uint8]
FORMATS = {
    "mp4": "mp4",
    "fmp4": "mp4",
    "ts": "mpegts",
    "mkv": "matroska",
    "webm": "webm",
    "avi": "avi",
    "mov": "mov",
}
FORMATS |= {"asf": "asf", "mxf": "mxf", "nut": "nut"}
FORMATS |= {"3gp": "3gp", "h264": "h264", "hevc": "hevc", "flv": "flv", "ps": "mpeg"}


def scene(index: int, width: int, height: int, speed: int) -> U8:
    """A textured square that moves `speed` pixels a frame to the right over a still, textured background."""
    rng = np.random.default_rng(5)
    picture = rng.integers(60, 120, (height // 4, width // 4)).astype(np.uint8).repeat(4, 0).repeat(4, 1)
    square = rng.integers(130, 250, (8, 8)).astype(np.uint8).repeat(4, 0).repeat(4, 1)
    left = 16 + speed * index
    shown = square[:, : max(0, width - left)]
    picture[16 : 16 + 32, left : left + shown.shape[1]] = shown
    return np.repeat(picture[:, :, None], 3, axis=2)


@contextmanager
def own_priority() -> Iterator[None]:
    """SVT-AV1, run by root, makes the thread that opens it a real-time one and leaves it so: everything that
    runs there later, and all threads it starts, would starve the machine."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


def encode(
    container: str = "mp4",
    codec: str = "libx264",
    *,
    frames: int = 30,
    fps: int = 10,
    size: tuple[int, int] = (128, 96),
    gop: int = 10,
    bframes: int = 0,
    speed: int = 0,
    pts: list[int] | None = None,
    pix_fmt: str = "yuv420p",
    options: dict[str, str] | None = None,
) -> bytes:
    """Bytes of a clip. `pts`: milliseconds per frame instead of a fixed rate."""
    buffer = io.BytesIO()
    fragmented = {"movflags": "frag_keyframe+empty_moov+default_base_moof"} if container == "fmp4" else {}
    with own_priority(), av.open(buffer, "w", format=FORMATS[container], options=fragmented) as out:
        settings = {"g": str(gop), "bf": str(bframes), **(options or {})}
        if codec == "libx264":
            settings = {"preset": "veryfast", "sc_threshold": "0", **settings}
        stream = out.add_stream(codec, rate=fps, options=settings)
        stream.width, stream.height = size
        stream.pix_fmt = pix_fmt
        stream.codec_context.thread_count = 1
        if pts is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for i in range(frames):
            frame = av.VideoFrame.from_ndarray(scene(i, *size, speed), format="rgb24").reformat(
                format=pix_fmt
            )
            frame.pts = pts[i] if pts is not None else i
            frame.time_base = Fraction(1, 1000) if pts is not None else Fraction(1, fps)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return buffer.getvalue()


def mixed_folder(folder: Path) -> Path:
    """Write a clip, a text and, in a subfolder, an empty file; return the folder."""
    (folder / "a.mp4").write_bytes(encode("mp4", frames=20, bframes=1))
    (folder / "b.txt").write_text("no video")
    (folder / "sub").mkdir()
    (folder / "sub" / "c.ts").write_bytes(b"")
    return folder


def interlaced(speed: int, frames: int = 8) -> bytes:
    """A texture that pans `speed` lines a frame, fields half a frame apart, as interlaced H.264."""
    rng = np.random.default_rng(1)
    texture = rng.integers(20, 235, (100, 40)).astype(np.float32).repeat(8, 0).repeat(8, 1)
    for axis in (0, 1):  # soften, so that sub-pixel search has a slope to follow
        texture = np.mean([np.roll(texture, shift, axis) for shift in range(-4, 5)], axis=0)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as out:
        options = {"g": "50", "bf": "0", "crf": "12", "x264-params": "tff=1:ref=1"}
        stream = out.add_stream("libx264", rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = 256, 192, "yuv420p"
        stream.codec_context.thread_count = 1
        for i in range(frames):
            picture = np.empty((192, 256), np.uint8)
            for field_ in (0, 1):
                top = 50 + round((i + field_ / 2) * speed)
                picture[field_::2] = texture[top : top + 192, 20:276][field_::2]
            frame = av.VideoFrame.from_ndarray(np.repeat(picture[:, :, None], 3, 2), format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, 25)
            out.mux(stream.encode(frame.reformat(format="yuv420p")))
        out.mux(stream.encode(None))
    return buffer.getvalue()


@dataclass
class Recorder:
    """A gather that counts; what it saw comes back as its motion."""

    needs_luma: bool = False
    needs_all: bool = True
    frames: list[FrameInfo] = field(default_factory=list)
    maps: list[PredictionBlocks | None] = field(default_factory=list)
    lumas: list[U8] = field(default_factory=list)
    geometries: list[Geometry] = field(default_factory=list)
    since: int = 0
    counts: list[int] = field(default_factory=list)
    grid: tuple[int, int] = (1, 1)

    def to_json(self) -> str:
        return json.dumps(self.needs_luma)

    @classmethod
    def from_json(cls, text: str) -> Recorder:
        return cls(needs_luma=json.loads(text))

    def start(self, geometry: Geometry) -> None:
        self.geometries.append(geometry)

    def push(self, frame: FrameInfo, blocks: VectorSource | None, luma: U8 | None) -> None:
        self.frames.append(frame)
        self.maps.append(None if blocks is None else blocks.blocks())
        if luma is not None:
            self.lumas.append(luma.copy())
        self.since += 1

    def sample(self, frame: FrameInfo) -> None:
        assert self.frames[-1] is frame
        self.counts.append(self.since)
        self.since = 0

    def motions(self) -> list[Motion]:
        counts, self.counts = self.counts, []
        return [Motion(Basis.VECTORS, np.full((1, 1), count, np.float16)) for count in counts]


def _threads(wanted: int) -> int:
    """Start threads; how many came."""
    for number in range(wanted):
        try:
            threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        except RuntimeError:
            return number
    return wanted


def _said(paths: list[str]) -> list[str]:
    """What the kernel says when it is asked for the facts of paths; each answer once."""
    said = set()
    for path in paths:
        for ask in (os.stat, os.lstat, os.listdir, os.readlink, os.statvfs, lambda path: os.open(path, 0)):
            try:
                ask(path)
                said.add("there")
            except OSError as error:
                said.add(errno.errorcode[error.errno or 0])
        said.add("there" if os.access(path, 0) else "EPERM")
    return sorted(said)


def _compute_after_the_answer() -> None:
    import __main__

    send = __main__.send_message

    def spin(*given: object) -> None:
        send(*given)
        while True:
            pass

    __main__.send_message = spin


class FakeMalice(Recorder):
    """Stands for a decoder that hostile bytes have taken over."""

    def __init__(self, deed: str) -> None:
        super().__init__(grid=(1, 2))
        self.deed = deed

    def to_json(self) -> str:
        return json.dumps(self.deed)

    @classmethod
    def from_json(cls, text: str) -> FakeMalice:
        return cls(json.loads(text))

    def push(self, frame: FrameInfo, blocks: VectorSource | None, luma: U8 | None) -> None:  # noqa: PLR0912
        match self.deed:
            case "half an answer":
                os.write(_reply_pipe(), b"\x10\0\0\0")
                time.sleep(600)
            case forgery if forgery.startswith("forge"):
                os.write(_reply_pipe(), _forged(forgery))
                time.sleep(600)
            case "fill":
                for fd in _shared_files():
                    os.pwrite(fd, b"x", 1 << 30)
            case escape if escape.startswith("escape "):
                from tests.unit.video.sandbox.attempts import successes

                _, parent, secret = escape.split(" ", 2)
                raise ZeroDivisionError(f"succeeded: {successes(int(parent), secret)}")
            case "socket":
                socket.socket()
            case "program":
                subprocess.run(["true"], check=False)
            case "fork":
                os.fork()
            case "die":
                os.kill(os.getpid(), 9)
            case "spin":
                while True:
                    pass
            case "busy":
                end = time.process_time() + 0.3
                while self.since == 0 and time.process_time() < end:
                    pass
                self.since = 1
            case "spin unstoppably":
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                while True:
                    pass
            case "threads":
                raise ZeroDivisionError(f"{_threads(3000)} threads")
            case "threads and sleep":
                _threads(3000)
                time.sleep(600)
            case paths if paths.startswith("paths "):
                raise ZeroDivisionError(f"said: {_said(paths.split(' ')[1:])}")
            case "compute when idle":
                _compute_after_the_answer()
            case "sleep":
                os.pwrite(_shared_files()[1], b"asleep", 0)
                time.sleep(600)
            case "hoard":
                bytearray(1 << 36)
            case "bug":
                raise ZeroDivisionError("a bug in the gather")

    def sample(self, frame: FrameInfo) -> None:
        self.counts.append(0)

    def motions(self) -> list[Motion]:
        count, made = len(super().motions()), Motion(Basis.NONE)
        if self.deed == "look":
            found = [len(_listed(".")), len([k for k in os.environ if "LOOKOUT" in k])]
            made = Motion(Basis.VECTORS, np.array([found], np.float16))
        return [made] * count


def _forged(deed: str) -> bytes:
    """A reply that is none: a message of another kind, a pickle, a length without end."""
    if deed == "forge long":
        return struct.pack("<I", (1 << 32) - 1)
    body = pickle.dumps(os.getpid) if deed == "forge pickle" else b"\x08\x63\x12\x02\x0a\x00"
    return struct.pack("<I", len(body)) + body


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except PermissionError:  # the usual answer in a worker
        return []


def _reply_pipe() -> int:
    """In a worker: the descriptor its answers go through."""
    return int(sys.argv[2])


def _shared_files() -> list[int]:
    return [int(each) for each in sys.argv[4:6]]


def without_packets(clip: bytes, first: int, stop: int) -> bytes:
    """A clip of which packets [first, stop) are overwritten with zeros."""
    data = bytearray(clip)
    with Video(clip) as video:
        for packet in list(video.packets())[first:stop]:
            body = bytes(packet)
            at = data.index(body)
            data[at : at + len(body)] = bytes(len(body))
    return bytes(data)


def trimmed(clip: bytes, start_s: float, container: str = "mp4", **options: str) -> bytes:
    """A clip without what comes before a time, its packets copied: as `ffmpeg -ss 2.05 -i clip -c copy` makes
    it. It begins at the keyframe before, and an edit list hides what was not wanted where the container has
    any."""
    buffer = io.BytesIO()
    with (
        av.open(io.BytesIO(clip)) as source,
        av.open(buffer, "w", format=FORMATS[container], options=options) as out,
    ):
        stream = source.streams.video[0]
        target = out.add_stream_from_template(stream, opaque=True)
        assert stream.time_base is not None
        start = round(start_s / stream.time_base)
        packets = [packet for packet in source.demux(stream) if packet.size]
        first = max(
            i for i, packet in enumerate(packets) if packet.is_keyframe and (packet.pts or 0) <= start
        )
        for packet in packets[first:]:
            assert packet.pts is not None
            assert packet.dts is not None
            packet.pts, packet.dts, packet.stream = packet.pts - start, packet.dts - start, target
            out.mux(packet)
    return buffer.getvalue()


def rest(clip: bytes, container: str, first: int, end: int | None = None, *, later_s: float = 0.0) -> bytes:
    """Packets [first, end) of a clip so much later, copied, with the decoder's headers at every keyframe: as
    a recorder writes them that begins anywhere."""
    buffer = io.BytesIO()
    options = {"avoid_negative_ts": "disabled"}
    with (
        av.open(io.BytesIO(clip)) as source,
        av.open(buffer, "w", format=FORMATS[container], options=options) as out,
    ):
        stream = source.streams.video[0]
        target = out.add_stream_from_template(stream, opaque=True)
        assert stream.time_base is not None
        shift = round(later_s / stream.time_base)
        headers = REPEAT_HEADERS.get(stream.codec_context.name) if container in ("ts", "h264") else None
        repeat = BitStreamFilterContext(headers, stream, target) if headers else None
        packets = [packet for packet in source.demux(stream) if packet.size]
        for packet in packets[first:end]:
            assert packet.pts is not None
            assert packet.dts is not None
            packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
            for ready in [packet] if repeat is None else repeat.filter(packet):
                ready.stream, ready.time_base = target, stream.time_base
                out.mux_one(ready)
    return buffer.getvalue()


def with_hole(clip: bytes, at_s: float, hole_s: float, container: str = "mp4") -> bytes:
    """A clip whose pictures from the keyframe at `at_s` on come `hole_s` later; its packets are copied."""
    buffer = io.BytesIO()
    with (
        av.open(io.BytesIO(clip)) as source,
        av.open(buffer, "w", format=FORMATS[container]) as out,
    ):
        stream = source.streams.video[0]
        target = out.add_stream_from_template(stream)
        assert stream.time_base is not None
        start, shift = round(at_s / stream.time_base), round(hole_s / stream.time_base)
        late = 0
        for packet in source.demux(stream):
            if packet.pts is None or packet.dts is None:
                continue
            late = shift if packet.is_keyframe and packet.pts >= start else late
            packet.pts, packet.dts, packet.stream = packet.pts + late, packet.dts + late, target
            out.mux(packet)
    return buffer.getvalue()


def edited(clip: bytes, edits: list[tuple[float, float | None]]) -> bytes:
    """An MP4 clip with another edit list: (length, begin in the media) of each edit in seconds; begin None:
    nothing is shown (ISO/IEC 14496-12, 8.6.6)."""
    with av.open(io.BytesIO(clip)) as source:
        base = source.streams.video[0].time_base
    assert base is not None
    rows = [(round(1000 * length), -1 if at is None else round(at / base)) for length, at in edits]
    table = b"".join(struct.pack(">IiHH", length, at, 1, 0) for length, at in rows)
    edit_list = _box(b"edts", _box(b"elst", struct.pack(">II", 0, len(rows)) + table))

    def rewritten(body: bytes, path: tuple[bytes, ...]) -> bytes:
        parts = []
        for kind, inner in _boxes(body):
            if kind != b"edts":
                parts.append(_box(kind, rewritten(inner, path[1:]) if path[:1] == (kind,) else inner))
            if kind == b"tkhd":
                parts.append(edit_list)
        return b"".join(parts)

    return rewritten(clip, (b"moov", b"trak"))


def _box(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(body), kind) + body


def _boxes(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at + 8 <= len(body):
        size, kind = struct.unpack(">I4s", body[at : at + 8])
        yield kind, body[at + 8 : at + size]
        at += size
