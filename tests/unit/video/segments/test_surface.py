"""Samples made of pictures on a device equal those of FFmpeg's scaler, byte for byte."""

from __future__ import annotations

import io
from fractions import Fraction

import av
import numpy as np
import pytest
import torch

from lookout.pruning.gather import GatherSettings, MotionGather
from lookout.pruning.residual import compensated_difference, patch_means
from lookout.video.motion import Fit, Geometry, MaskLayer, PictureMask
from lookout.video.segments import CodecError, DecodeRequest, Reason, SoftwareDecoder
from lookout.video.segments.nvdec import NvdecDecoder
from lookout.video.segments.picture import Painter
from lookout.video.segments.surface import Format, Surface, SurfacePainter
from tests.unit.video.segments.test_nvdec import FakeDecodedFrame, fake_library

MASK = PictureMask((MaskLayer(hide=(((0.2, 0.1), (0.7, 0.3), (0.4, 0.9)),)),))


def frame_of(
    size: tuple[int, int], form: str = "yuv420p", space: int = 1, full: bool = False
) -> av.VideoFrame:
    """Squares of random colours."""
    rng = np.random.default_rng(1)
    frame = av.VideoFrame(*size, form)
    frame.colorspace, frame.color_range = space, 2 if full else 1
    bits = frame.format.components[0].bits
    kind = np.dtype(np.uint8 if bits == 8 else "<u2")
    for plane in frame.planes:
        rows = np.frombuffer(plane, kind).reshape(-1, plane.line_size // kind.itemsize)
        values = rng.integers(0, 1 << bits, (rows.shape[0] // 3 + 1, rows.shape[1] // 5 + 1)).astype(kind)
        rows[:] = values.repeat(3, 0).repeat(5, 1)[: rows.shape[0], : rows.shape[1]]
    return frame


def surface_of(frame: av.VideoFrame) -> Surface:
    return Surface.of(FakeDecodedFrame(frame, stats=False), Format.of(frame, "vp9"))


def difference(frame: av.VideoFrame, geometry: Geometry, mask: PictureMask | None = None) -> int:
    ours = SurfacePainter(mask).paint(surface_of(frame), geometry)
    theirs = Painter(mask).paint(frame, geometry)
    assert ours.shape == theirs.shape
    assert ours.dtype == np.uint8
    return int(np.abs(ours.astype(int) - theirs).max())


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("space", [1, 2, 5, 9])
def test_ranges_and_colour_spaces(space: int, full: bool) -> None:
    for size in ((448, 448), (57, 43)):
        frame = frame_of((640, 360), space=space, full=full)
        assert difference(frame, Geometry.fitted((640, 360), size)) == 0


@pytest.mark.parametrize(
    "form", ["yuvj420p", "yuv420p10le", "yuv420p12le", "yuv422p", "yuv422p10le", "yuv444p"]
)
def test_formats(form: str) -> None:
    for size in ((56, 42), (112, 112), (57, 42)):
        assert difference(frame_of((200, 120), form), Geometry.fitted((200, 120), size)) == 0


@pytest.mark.parametrize(
    ("size", "out"),
    [
        ((1920, 1080), (448, 448)),
        ((64, 48), (128, 128)),
        ((128, 96), (128, 96)),
        ((128, 96), (128, 48)),
        ((128, 96), (56, 96)),
        ((129, 97), (56, 42)),
        ((131, 99), (64, 99)),
        ((98, 130), (99, 200)),
        ((34, 18), (2, 2)),
        ((18, 18), (1, 1)),
        ((1000, 64), (10, 400)),
    ],
)
def test_sizes(size: tuple[int, int], out: tuple[int, int]) -> None:
    assert difference(frame_of(size), Geometry.fitted(size, out)) == 0


def test_an_odd_size_that_stays_differs_by_one_level_at_most() -> None:
    # libswscale has a function of its own for this; no model input has this size.
    assert difference(frame_of((127, 95)), Geometry.fitted((127, 95), (127, 95))) <= 1


@pytest.mark.parametrize("mask", [None, MASK])
@pytest.mark.parametrize("fit", list(Fit))
def test_turned_mirrored_cropped_and_masked(fit: Fit, mask: PictureMask | None) -> None:
    for rotation in (0, 90, 180, 270):
        geometry = Geometry.fitted((200, 120), (70, 56), fit, rotation=rotation, mirror=rotation % 180 > 0)
        for form in ("yuv420p", "yuv420p10le"):
            frame = frame_of((200, 120), form)
            assert difference(frame, geometry, mask) == 0
            ours = SurfacePainter(mask).luma(surface_of(frame), geometry)
            assert np.array_equal(ours.numpy(), Painter(mask).luma(frame, geometry))


def test_a_picture_is_copied_out_of_memory_that_is_used_again() -> None:
    frame = FakeDecodedFrame(frame_of((64, 48)), stats=False)
    surface = Surface.of(frame, Format.of(frame_of((64, 48)), "h264"))
    before = [plane.clone() for plane in surface.planes]
    frame.memory.zero_()
    assert all(torch.equal(a, b) for a, b in zip(before, surface.planes, strict=True))


@pytest.mark.parametrize("shape", [(72, 65), (71, 64), (48, 64), (1, 72, 64)])
def test_an_array_of_another_size_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(CodecError, match="for a picture of 64x48") as caught:
        Surface.of(torch.zeros(shape, dtype=torch.uint8), Format.of(frame_of((64, 48)), "h264"))
    assert caught.value.reason is Reason.DIMENSIONS


def test_a_picture_that_is_not_exported_is_left_to_the_software_decoder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("only nv12 and yuv444 supported as of now")

    monkeypatch.setattr(FakeDecodedFrame, "__dlpack__", refuse)
    with pytest.raises(CodecError, match=r"through DLPack \(only nv12 and yuv444 supported") as caught:
        NvdecDecoder(library=fake_library()).decode(coloured("mpeg4", "yuv420p"), DecodeRequest(28, 28))
    assert caught.value.reason is Reason.NO_DECODER


def test_the_residual_of_tensors_is_that_of_arrays() -> None:
    rng = np.random.default_rng(2)
    now, before = rng.integers(0, 256, (2, 50, 70), np.uint8)
    dx, dy = rng.normal(0, 9, (2, 7, 9)).astype(np.float32)
    theirs = compensated_difference(now, before, dx, dy, 8)
    ours = compensated_difference(torch.from_numpy(now), torch.from_numpy(before), dx, dy, 8)
    assert isinstance(ours, torch.Tensor)
    assert np.array_equal(ours.numpy(), theirs)
    for rotation in (0, 90):
        geometry = Geometry.fitted((70, 50), (56, 42), Fit.CONTAIN, rotation=rotation)
        means = patch_means(ours, geometry, 3, 4, 14)
        assert np.array_equal(means, patch_means(theirs, geometry, 3, 4, 14))


def coloured(codec: str, form: str, colours: dict[str, str] | None = None) -> bytes:
    """A clip whose colours differ from patch to patch, moving."""
    rng, buffer = np.random.default_rng(3), io.BytesIO()
    picture = rng.integers(0, 255, (16, 24, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    with av.open(buffer, "w", format="mp4") as out:
        stream = out.add_stream(codec, rate=10, options={"g": "10", "bf": "0", **(colours or {})})
        stream.width, stream.height, stream.pix_fmt = 192, 128, form
        stream.codec_context.thread_count = 1
        for index in range(12):
            moved = np.ascontiguousarray(np.roll(picture, 3 * index, 1))
            frame = av.VideoFrame.from_ndarray(moved, format="rgb24").reformat(format=form)
            frame.pts, frame.time_base = index, Fraction(1, 10)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("codec", "form", "options"),
    [
        ("libx264", "yuv420p", {}),
        ("libx264", "yuv420p", {"x264-params": "colormatrix=bt709:fullrange=on"}),
        ("libx264", "yuv420p10le", {}),
        ("libx264", "yuv444p", {}),
        ("mpeg4", "yuv420p", {}),
        ("libx265", "yuv420p", {"x265-params": "log-level=error:colormatrix=bt709"}),
    ],
)
def test_decoded_pictures_have_the_colours_of_the_software_decoder(
    codec: str, form: str, options: dict[str, str]
) -> None:
    data, request = coloured(codec, form, options), DecodeRequest(56, 42)
    nvdec = NvdecDecoder(library=fake_library()).decode(data, request)
    software = SoftwareDecoder().decode(data, request)
    assert len(software.frames) >= 3
    assert np.array_equal(nvdec.pixels, software.pixels)


def test_residuals_are_measured_where_the_pictures_are() -> None:
    data = coloured("libx264", "yuv420p")
    motions = []
    for decoder in (SoftwareDecoder(), NvdecDecoder(library=fake_library())):
        gather = MotionGather(GatherSettings(3, 4, 14, residual=True))
        request = DecodeRequest(56, 42, gather=gather)
        motions.append([frame.motion for frame in decoder.decode(data, request).frames])
    for ours, theirs in zip(*motions, strict=True):
        assert ours is not None
        assert theirs is not None
        assert (ours.r is None) == (theirs.r is None)
    assert any(motion is not None and motion.r is not None for motion in motions[1])


def test_pictures_in_a_format_that_is_not_read_are_left_to_the_software_decoder() -> None:
    with pytest.raises(CodecError, match="pictures of the format gbrp cannot be read from NVDEC") as caught:
        NvdecDecoder(library=fake_library()).decode(coloured("libx264rgb", "rgb24"), DecodeRequest(28, 28))
    assert caught.value.reason is Reason.NO_DECODER
