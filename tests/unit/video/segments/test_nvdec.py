"""The NVDEC back end, against a library with PyNvVideoCodec's surface and statistics shaped like its own."""

from __future__ import annotations

import importlib.util
import io
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
import torch
from av.container import InputContainer

from lookout.video.motion import Picture, PredictionBlocks, PredictionKind
from lookout.video.motion.prediction import prediction_blocks
from lookout.video.segments import CodecError, DecodeRequest, Reason, SamplingGrid, SoftwareDecoder
from lookout.video.segments.nvdec import (
    NvdecDecoder,
    NvdecSettings,
    agreement,
    block_side,
    load_library,
    parse_decode_stats,
)
from tests.unit.video.segments.clips import Recorder, encode, trimmed

# ParseDecodeStats() of a 48x32 picture: one number per macroblock, row by row.
RECORDED = {
    "qp_luma": [28, 28, 30, 30, 31, 27],
    "cu_type": [0, 1, 2, 3, 1, 7],
    "mv0_x": [0, -6, 0, 0, 4, 0],
    "mv0_y": [0, 2, 0, 0, 0, 0],
    "mv1_x": [0, 0, 0, 0, -8, 0],
    "mv1_y": [0, 0, 0, 0, 1, 0],
}


def rows(blocks: PredictionBlocks) -> set[tuple[float, ...]]:
    columns = (blocks.x, blocks.y, blocks.w, blocks.dx, blocks.dy, blocks.kind, blocks.source)
    return {tuple(float(v) for v in row) for row in zip(*columns, strict=True)}


def test_recorded_statistics_become_a_block_map() -> None:
    assert rows(parse_decode_stats(RECORDED, 48, 32)) == {
        (0, 0, 16, 0, 0, PredictionKind.INTRA, 0),
        (16, 0, 16, -1.5, 0.5, PredictionKind.INTER, -1),
        (32, 0, 16, 0, 0, PredictionKind.SKIP, -1),
        (0, 16, 16, 0, 0, PredictionKind.INTRA, 0),
        (16, 16, 16, 1, 0, PredictionKind.INTER, -1),
        (16, 16, 16, -2, 0.25, PredictionKind.INTER, 1),
        (32, 16, 16, 0, 0, PredictionKind.UNKNOWN, 0),
    }


def test_units_are_a_setting() -> None:
    blocks = parse_decode_stats(RECORDED, 48, 32, vector_units=2.0)
    assert blocks.dx[blocks.x == 16].tolist()[0] == -3.0


@pytest.mark.parametrize(
    ("count", "size", "side"), [(8160, (1920, 1080), 16), (32400, (1920, 1080), 8), (510, (1920, 1080), 64)]
)
def test_block_sizes_follow_from_counts(count: int, size: tuple[int, int], side: int) -> None:
    assert block_side(count, *size) == side


def test_statistics_that_make_no_sense_are_refused() -> None:
    with pytest.raises(CodecError, match="lack"):
        parse_decode_stats({"qp_luma": [1]}, 16, 16)
    with pytest.raises(CodecError, match="differ in length"):
        parse_decode_stats({**RECORDED, "mv1_y": [0]}, 48, 32)
    with pytest.raises(CodecError, match="do not fit a grid of blocks"):
        parse_decode_stats(RECORDED, 640, 480)


def native(frame: av.VideoFrame) -> npt.NDArray[Any]:
    """A picture as NVDEC lays it out: luma above colour (NV12, P016, NV16, P216, or three whole planes),
    sizes rounded up to even numbers, deep samples at the top of two bytes."""
    bits = frame.format.components[0].bits
    kind = np.dtype(np.uint8 if bits == 8 else "<u2")
    planes = []
    for plane in frame.planes:
        rows = np.frombuffer(plane, kind).reshape(-1, plane.line_size // kind.itemsize)
        shown = rows[: plane.height, : plane.width]
        planes.append(shown << (16 - bits) if bits > 8 else shown)
    y, u, v = planes
    y = np.pad(y, ((0, y.shape[0] & 1), (0, y.shape[1] & 1)), mode="edge")
    if u.shape == y.shape:
        return np.concatenate([y, u, v])
    return np.concatenate([y, np.stack([u, v], axis=-1).reshape(u.shape[0], -1)])


class FakeDecodedFrame:
    """What SimpleDecoder hands out: memory that it uses again, a time stamp, statistics."""

    def __init__(self, frame: av.VideoFrame, stats: bool) -> None:
        self.picture = torch.from_numpy(native(frame))
        self.memory = self.picture
        self._pts, self._blocks = frame.pts, prediction_blocks(frame)
        self._size = (frame.width, frame.height)
        self.decode_stats_size = 1 if stats else 0

    def __dlpack__(self, **_: Any) -> Any:
        return self.memory.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.memory.__dlpack_device__()

    def getPTS(self) -> int:
        return self._pts if self._pts is not None else -1

    def ParseDecodeStats(self) -> dict[str, list[int]]:
        columns = -(-self._size[0] // 16)
        count = columns * -(-self._size[1] // 16)
        stats = {name: [0] * count for name in RECORDED}
        if self._blocks is not None:
            blocks = self._blocks
            cells = (blocks.y + blocks.h // 2) // 16 * columns + (blocks.x + blocks.w // 2) // 16
            for cell, dx, dy, source in zip(cells, blocks.dx, blocks.dy, blocks.source, strict=True):
                stats["cu_type"][cell] = 1
                name = "mv0" if source < 0 else "mv1"
                stats[f"{name}_x"][cell], stats[f"{name}_y"][cell] = round(dx * 4), round(dy * 4)
        return stats


class FakeUnsupportedError(Exception):
    """Stands for PyNvVCExceptionUnsupported."""


def every_frame(container: InputContainer) -> Iterator[av.VideoFrame]:
    """Every frame, as a chip gives them: it knows nothing of edit lists."""
    stream = container.streams.video[0]
    for packet in container.demux(stream):
        plain = av.Packet(bytes(packet)) if packet.size else None
        if plain is not None:
            plain.pts, plain.dts, plain.time_base = packet.pts, packet.dts, packet.time_base
        yield from stream.codec_context.decode(plain)


def fake_library(stats: bool = True, refuse: bool = False) -> Any:
    """A module with PyNvVideoCodec's surface that decodes with FFmpeg."""

    class FakeSimpleDecoder:
        def __init__(self, source: bytes, **options: Any) -> None:
            assert options["use_device_memory"] is True
            assert options["output_color_type"] == "NATIVE"
            assert options["need_scanned_stream_metadata"] is True
            if refuse:
                raise FakeUnsupportedError("codec not supported on this chip")
            with av.open(io.BytesIO(source)) as container:
                if container.format.name in ("h264", "hevc"):
                    raise RuntimeError(
                        "Elementary streams not supported by Simple Decoder. Invalid input stream."
                    )
                container.streams.video[0].codec_context.flags2 |= 1 << 28
                wants = stats and options["enableDecodeStats"]
                self._frames = [FakeDecodedFrame(frame, wants) for frame in every_frame(container)]
            rows, cols = self._frames[0].picture.shape if self._frames else (0, 0)
            # One buffer for all pictures, with rows longer than theirs.
            self._memory = torch.zeros(rows, -(-cols // 256) * 256, dtype=self._frames[0].picture.dtype)

        def __len__(self) -> int:
            return len(self._frames)

        def __getitem__(self, index: int) -> FakeDecodedFrame:
            frame = self._frames[index]
            frame.memory = self._memory[:, : frame.picture.shape[1]]
            frame.memory.copy_(frame.picture)
            return frame

    return SimpleNamespace(
        __version__="2.2.4",
        SimpleDecoder=FakeSimpleDecoder,
        OutputColorType=SimpleNamespace(NATIVE="NATIVE"),
        PyNvVCExceptionUnsupported=FakeUnsupportedError,
    )


@pytest.mark.parametrize("container", ["mp4", "ts", "h264"])
def test_both_back_ends_sample_the_same_frames(container: str) -> None:
    data = encode(container, speed=2, bframes=1)
    ours, theirs = Recorder(), Recorder()
    software = SoftwareDecoder().decode(data, DecodeRequest(56, 42, gather=ours))
    nvdec = NvdecDecoder(library=fake_library()).decode(data, DecodeRequest(56, 42, gather=theirs))
    assert nvdec.facts.backend == "nvdec"
    assert nvdec.facts.has_vectors
    assert nvdec.geometry == software.geometry
    assert [s.slot for s in nvdec.frames] == [s.slot for s in software.frames]
    assert [s.info.index for s in nvdec.frames] == [s.info.index for s in software.frames]
    assert [s.info.time_us for s in nvdec.frames] == [s.info.time_us for s in software.frames]
    assert np.array_equal(nvdec.pixels, software.pixels)
    assert len(theirs.frames) == len(ours.frames)
    assert all(
        (blocks is None) == (frame.picture is Picture.I)
        for frame, blocks in zip(theirs.frames, theirs.maps, strict=True)
    )


def test_what_an_edit_list_hides_is_not_sampled() -> None:
    data = trimmed(encode(speed=2, bframes=1), 1.45)
    request = DecodeRequest(56, 42, grid=SamplingGrid(100_000))
    software = SoftwareDecoder().decode(data, request)
    nvdec = NvdecDecoder(library=fake_library()).decode(data, request)
    assert nvdec.facts.frames == software.facts.frames == 15
    assert [s.stream_us for s in nvdec.frames] == [s.stream_us for s in software.frames]
    assert np.array_equal(nvdec.pixels, software.pixels)


def test_statistics_are_checked_against_the_software_decoder() -> None:
    data = encode("mp4", speed=4)
    assert NvdecDecoder(library=fake_library()).check(data) > 0.95
    assert NvdecDecoder(NvdecSettings(vector_units=16), fake_library()).check(data) < 0.95
    assert NvdecDecoder(library=fake_library(stats=False)).check(data) == 0.0


def test_agreement_counts_cells_both_cover() -> None:
    blocks = parse_decode_stats(RECORDED, 48, 32)
    assert agreement(blocks, blocks, 48, 32) == 1.0


def test_without_statistics_the_fallback_is_declared() -> None:
    recorder = Recorder()
    decoded = NvdecDecoder(library=fake_library(stats=False)).decode(
        encode(), DecodeRequest(28, 28, gather=recorder)
    )
    assert not decoded.facts.has_vectors
    assert decoded.facts.fallback == "luma"
    assert recorder.maps == [None] * 30


def test_a_chip_that_cannot_says_so() -> None:
    with pytest.raises(CodecError, match="codec not supported on this chip") as caught:
        NvdecDecoder(library=fake_library(refuse=True)).decode(encode(), DecodeRequest(28, 28))
    assert caught.value.reason is Reason.NO_DECODER


def test_limits_and_bad_bytes_are_the_same_errors() -> None:
    decoder = NvdecDecoder(library=fake_library())
    for data, reason in ((b"", Reason.EMPTY), (b"x" * 500, Reason.UNREADABLE)):
        with pytest.raises(CodecError) as caught:
            decoder.decode(data, DecodeRequest(28, 28))
        assert caught.value.reason is reason


def test_it_says_plainly_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PyNvVideoCodec", None)
    with pytest.raises(CodecError, match="install the nvdec extra") as caught:
        NvdecDecoder()
    assert caught.value.reason is Reason.UNAVAILABLE
    old = ModuleType("PyNvVideoCodec")
    old.__version__ = "1.0.2"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "PyNvVideoCodec", old)
    with pytest.raises(CodecError, match=r"2\.1 or later"):
        load_library()


def test_a_library_without_a_driver_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_name: str) -> ModuleType:
        raise RuntimeError(
            "Failed to load NVENC library: libnvidia-encode.so.1\n\n=== TROUBLESHOOTING STEPS ==="
        )

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(CodecError, match="libnvidia-encode") as caught:
        load_library()
    assert caught.value.reason is Reason.UNAVAILABLE
    assert "\n" not in str(caught.value)


def test_the_real_library_where_it_is_installed() -> None:
    if importlib.util.find_spec("PyNvVideoCodec") is None:
        pytest.skip("PyNvVideoCodec is not installed (the nvdec extra)")
    try:
        decoder = NvdecDecoder()
    except CodecError as error:
        pytest.skip(str(error))
    data = encode("mp4", size=(256, 192), speed=4)
    decoded = decoder.decode(data, DecodeRequest(56, 42))
    assert decoded.facts.frames == 30
