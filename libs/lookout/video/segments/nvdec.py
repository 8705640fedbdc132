"""Decodes with NVDEC through PyNvVideoCodec (2.1 or later), with the interface of the software decoder.

It provides vectors for H.264 and HEVC if the driver (590 or later) and the GPU export decode statistics.
Otherwise the library silently disables them, and the segment then declares the luma fallback. According to
the library's wheel and samples, the statistics are `qp_luma`, `cu_type` (0 intra, 1 inter, 2 skip, 3 PCM, 7
invalid), `mv0_x`, `mv0_y` (list 0), `mv1_x`, `mv1_y` (list 1), one number per block. Units, reference index
and block order are not documented. The code assumes quarter pixels and blocks in row order, and leaves the
reference unknown. `agreement` checks this against the software decoder before vectors are trusted.

Pictures stay in the GPU's memory: `surface` takes their planes through DLPack and makes the samples there.
CUDA needs a large address space, so this decoder runs in a container of its own and not in `SandboxPool`.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import av
import numpy as np

from lookout.video.motion.prediction import prediction_blocks
from lookout.video.motion.types import Picture, PredictionBlocks, PredictionKind
from lookout.video.segments.container import Video
from lookout.video.segments.decoded_frame import DecodedFrame
from lookout.video.segments.decoder import SinglePass
from lookout.video.segments.picture import keyframe_picture, orientation
from lookout.video.segments.types import CodecError, DecodedSegment, DecodeRequest, Reason

if TYPE_CHECKING:
    from lookout.video.segments.surface import Format, Surface

PACKAGE = "PyNvVideoCodec"
LEAST_VERSION = (2, 1)
KINDS = {0: PredictionKind.INTRA, 1: PredictionKind.INTER, 2: PredictionKind.SKIP, 3: PredictionKind.INTRA}
FIELDS = ("cu_type", "mv0_x", "mv0_y", "mv1_x", "mv1_y")
# Most likely first: H.264's macroblocks, then possible block sizes of HEVC's statistics.
BLOCK_SIZES = (16, 8, 32, 64, 4)
CODECS = frozenset({"h264", "hevc", "av1", "vp8", "vp9", "mpeg4", "mpeg2video", "mpeg1video"})
STATISTICS = frozenset({"h264", "hevc"})
#: pixel formats that NVDEC returns as NV12, P016 or arrays of that layout; never with alpha or a palette
FORMATS = frozenset({"yuv420p", "yuvj420p", "yuv422p", "yuvj422p", "yuv444p", "yuvj444p"})


@dataclass(frozen=True, slots=True)
class NvdecSettings:
    """Settings of the NVDEC decoder.

    Attributes:
        gpu: Ordinal of the GPU.
        vector_units: Units of a motion vector per pixel (4: quarter pixels).
        trust: Whether to use the motion vectors in the driver's decode statistics; if not, segments have no
            vectors, and luma is used instead.
    """

    gpu: int = 0
    vector_units: float = 4.0
    trust: bool = True


def parse_decode_stats(
    stats: Mapping[str, Sequence[int]], width: int, height: int, vector_units: float = 4.0
) -> PredictionBlocks:
    """Convert `DecodedFrame.ParseDecodeStats()` to a block map with intra blocks included (dx = dy = 0,
    source 0).

    Args:
        stats: Equally long lists, one entry per block, row by row.
        width: Width of the coded picture.
        height: Height of the coded picture.
        vector_units: Units of a motion vector per pixel.

    Raises:
        CodecError: With UNREADABLE: fields are missing, or their length fits no grid of blocks.
    """
    missing = [name for name in FIELDS if name not in stats]
    if missing:
        raise CodecError(
            Reason.UNREADABLE, f"decode statistics lack {', '.join(missing)}; they have {sorted(stats)}"
        )
    kinds, x0, y0, x1, y1 = (np.asarray(stats[name], np.int64) for name in FIELDS)
    if len({len(column) for column in (kinds, x0, y0, x1, y1)}) != 1:
        raise CodecError(Reason.UNREADABLE, "decode statistics differ in length")
    side = block_side(len(kinds), width, height)
    columns = -(-width // side)
    number = np.arange(len(kinds))
    kind = np.full(len(kinds), PredictionKind.UNKNOWN, np.uint8)
    for code, meaning in KINDS.items():
        kind[kinds == code] = meaning
    moves = (kind == PredictionKind.INTER) | (kind == PredictionKind.SKIP)
    second = moves & ((x1 != 0) | (y1 != 0))
    first = moves & ~(second & (x0 == 0) & (y0 == 0))
    still = ~moves
    parts = [(still, x0 * 0, y0 * 0, 0), (first, x0, y0, -1), (second, x1, y1, 1)]
    index = np.concatenate([number[mask] for mask, _, _, _ in parts])
    size = np.full(len(index), side, np.int16)
    return PredictionBlocks(
        x=(index % columns * side).astype(np.int16),
        y=(index // columns * side).astype(np.int16),
        w=size,
        h=size.copy(),
        dx=(np.concatenate([dx[mask] for mask, dx, _, _ in parts]) / vector_units).astype(np.float32),
        dy=(np.concatenate([dy[mask] for mask, _, dy, _ in parts]) / vector_units).astype(np.float32),
        kind=kind[index],
        source=np.concatenate([np.full(int(mask.sum()), list_, np.int8) for mask, _, _, list_ in parts]),
    )


def block_side(count: int, width: int, height: int) -> int:
    """Return the block size for which a grid over the picture has `count` blocks.

    Raises:
        CodecError: With the reason UNREADABLE.
    """
    for side in BLOCK_SIZES:
        if -(-width // side) * -(-height // side) == count:
            return side
    raise CodecError(
        Reason.UNREADABLE, f"{count} decode statistics do not fit a grid of blocks over {width}x{height}"
    )


def agreement(ours: PredictionBlocks, truth: PredictionBlocks, width: int, height: int) -> float:
    """Return in what share of 16x16 cells two maps of one frame have the same list-0 vector; only cells that
    both maps cover count."""

    def raster(blocks: PredictionBlocks) -> np.ndarray[Any, np.dtype[np.float32]]:
        past = blocks.take((blocks.source < 0) & (blocks.kind != PredictionKind.INTRA))
        grid = np.full((-(-height // 16), -(-width // 16), 2), np.nan, np.float32)
        rows = np.clip((past.y + past.h // 2) // 16, 0, grid.shape[0] - 1)
        columns = np.clip((past.x + past.w // 2) // 16, 0, grid.shape[1] - 1)
        grid[rows, columns, 0], grid[rows, columns, 1] = past.dx, past.dy
        return grid

    a, b = raster(ours), raster(truth)
    defined = ~np.isnan(a[..., 0]) & ~np.isnan(b[..., 0])
    # The finest step of both maps is a quarter pixel.
    equal = (np.abs(a - b).max(axis=-1) < 0.26) & defined
    return float(equal.sum() / defined.sum()) if defined.any() else 0.0


def load_library() -> Any:
    """Import the PyNvVideoCodec module.

    Raises:
        CodecError: With UNAVAILABLE; the message says what is missing and what to do.
    """
    try:
        module = importlib.import_module(PACKAGE)
    except ImportError:
        raise CodecError(
            Reason.UNAVAILABLE,
            f"NVDEC needs the package {PACKAGE}: install the nvdec extra, or use the software decoder",
        ) from None
    except Exception as error:  # the library passes on any error of its search for a driver
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CodecError(
            Reason.UNAVAILABLE,
            f"NVDEC cannot run here ({first}): it needs an NVIDIA GPU and driver, in a container "
            "with the video capability; or use the software decoder",
        ) from None
    if find_spec("torch") is None:
        raise CodecError(
            Reason.UNAVAILABLE,
            "NVDEC needs torch, which keeps its pictures on the GPU as tensors: install the nvdec "
            "extra, or use the software decoder",
        )
    version = tuple(int(part) for part in str(module.__version__).split(".")[:2])
    if version < LEAST_VERSION:
        raise CodecError(
            Reason.UNAVAILABLE,
            f"NVDEC needs {PACKAGE} 2.1 or later, but this is {module.__version__}: upgrade it",
        )
    return module


class NvdecDecoder:
    """Decodes segments on an NVIDIA GPU. Errors: `CodecError`; with UNAVAILABLE when it is created, if it
    cannot run here."""

    def __init__(self, settings: NvdecSettings | None = None, library: Any = None) -> None:
        self.settings = settings or NvdecSettings()
        self._library = library if library is not None else load_library()

    def decode(self, segment: bytes, request: DecodeRequest) -> DecodedSegment:
        """Decode one segment.

        Raises:
            CodecError: The segment cannot be decoded; `reason` says why.
        """
        if len(segment) > request.limits.bytes:
            raise CodecError(
                Reason.BYTES, f"{len(segment)} bytes exceed the limit of {request.limits.bytes} for a segment"
            )
        with Video(segment, vectors=False, limits=request.limits) as video:
            return _NvdecPass(video, request, segment, self._library, self.settings).run()

    def check(self, segment: bytes) -> float:
        """Return the mean `agreement` of a segment's P-frames with the software decoder: near 1 if vectors
        can be trusted."""
        scores = []
        with Video(segment) as truth, Video(segment, vectors=False) as video:
            request = DecodeRequest(16, 16)
            ours = _NvdecPass(video, request, segment, self._library, self.settings)
            for shot, frame in zip(ours.shots(), truth.frames(), strict=False):
                expected = prediction_blocks(frame)
                vectors = shot.blocks()
                if frame.pict_type == Picture.P and expected is not None and vectors is not None:
                    scores.append(agreement(vectors.blocks(), expected, frame.width, frame.height))
        return float(np.mean(scores)) if scores else 0.0


class _NvdecPass(SinglePass):
    """The single pass over frames from NVDEC. Packets are also read with FFmpeg, for facts that NVDEC does
    not report."""

    backend = "nvdec"

    def __init__(
        self, video: Video, request: DecodeRequest, segment: bytes, library: Any, settings: NvdecSettings
    ) -> None:
        super().__init__(video, request, len(segment))
        self._segment, self._library, self._settings = segment, library, settings
        from lookout.video.segments.surface import Format, Surface, SurfacePainter  # imports torch

        self.has_vectors = False
        self.painter = SurfacePainter(request.mask)
        self._format_of, self._surface_of = Format.of, Surface.of

    def shots(self) -> Iterator[DecodedFrame]:
        """Yield every frame in presentation order."""
        if self.video.codec not in CODECS:
            raise CodecError(Reason.NO_DECODER, f"NVDEC does not decode {self.video.codec}")
        packets = list(self.video.packets())
        if packets and not packets[0].is_keyframe:
            raise CodecError(
                Reason.NO_KEYFRAME,
                f"the {self.video.codec} stream does not start at a keyframe; cut it at keyframes",
            )
        for packet in packets:
            self.counts.packet(packet, hidden=self.video.hides(packet))
        self.timed = any(packet.pts is not None for packet in packets)
        # NVDEC reports neither colours nor rotation, so the first picture is decoded in software as well.
        first = keyframe_picture(self.video, packets[0]) if packets else None
        if first is None:
            return
        form, turn = self._format(first), orientation(first)
        keys = {packet.pts for packet in packets if packet.is_keyframe}
        hidden = {packet.pts for packet in packets if self.video.hides(packet)}
        decoded = sorted(packet.pts for packet in packets if packet.pts is not None)
        for index, frame in enumerate(self._decode(packets)):
            pts = self._pts(frame, index, decoded)
            if pts in hidden:  # NVDEC also returns pictures that an edit list hides
                continue
            key = pts in keys if self.timed else index == 0
            yield self._shot(self._surface_of(frame, form), frame, pts, key, turn)

    def _format(self, picture: av.VideoFrame) -> Format:
        name = picture.format.name
        if name.removesuffix("le").rstrip("0123456789") not in FORMATS:
            raise CodecError(Reason.NO_DECODER, f"pictures of the format {name} cannot be read from NVDEC")
        return self._format_of(picture, self.video.codec)

    def _decode(self, packets: Sequence[av.Packet]) -> Iterator[Any]:
        source = self._segment if self.timed else _with_times(self.video, packets)
        library = self._library
        try:
            decoder = library.SimpleDecoder(
                source,
                gpu_id=self._settings.gpu,
                use_device_memory=True,
                need_scanned_stream_metadata=True,
                output_color_type=library.OutputColorType.NATIVE,
                enableDecodeStats=self.video.codec in STATISTICS and self.request.vectors,
            )
            for index in range(len(decoder)):
                yield decoder[index]
        except CodecError:
            raise
        except library.PyNvVCExceptionUnsupported as error:
            raise CodecError(
                Reason.NO_DECODER, f"this GPU does not decode {self.video.codec} ({error})"
            ) from None
        except Exception as error:
            raise CodecError(Reason.UNREADABLE, f"NVDEC could not decode the segment ({error})") from None

    def _pts(self, frame: Any, index: int, decoded: list[int]) -> int | None:
        if not self.timed:
            return None
        pts = int(frame.getPTS())
        return pts if pts in decoded else (decoded[index] if index < len(decoded) else None)

    def _shot(
        self, surface: Surface, frame: Any, pts: int | None, key: bool, turn: tuple[int, bool]
    ) -> DecodedFrame:
        blocks: PredictionBlocks | None = None
        if self._settings.trust and getattr(frame, "decode_stats_size", 0) > 0:
            stats, units = frame.ParseDecodeStats(), self._settings.vector_units
            blocks = parse_decode_stats(stats, surface.width, surface.height, units)
            self.has_vectors = True
        picture = _picture(blocks, key)
        return DecodedFrame(
            pts=pts,
            picture=picture,
            key=key,
            corrupt=False,
            interlaced=False,
            turn=lambda: turn,
            frame=surface,
            blocks=lambda: None if picture.intra else blocks,
        )


def _picture(blocks: PredictionBlocks | None, key: bool) -> Picture:
    if key:
        return Picture.I
    if blocks is None:
        return Picture.UNKNOWN
    if (blocks.source > 0).any():
        return Picture.B
    return Picture.I if (blocks.kind == PredictionKind.INTRA).all() else Picture.P


def _with_times(video: Video, packets: Sequence[av.Packet]) -> bytes:
    """Mux an elementary stream into MP4, because SimpleDecoder requires a container. SimpleDecoder orders the
    frames."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as out:
        target = out.add_stream_from_template(video.stream, opaque=True)
        step = round(1 / (video.fps * video.time_base))
        for index, packet in enumerate(packets):
            packet.pts = packet.dts = index * step
            packet.time_base, packet.stream = video.time_base, target
            out.mux_one(packet)
    return buffer.getvalue()
