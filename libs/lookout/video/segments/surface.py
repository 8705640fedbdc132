"""Decoded pictures that stay in a device's memory, and the painter that converts them to samples on that
device.

Only what the model sees, `width` x `height` x 3 bytes a sample, is copied to the host. Results equal those of
`lookout.video.segments.picture.Painter` on the same picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import av
import torch

from lookout.video.motion.geometry import Geometry
from lookout.video.motion.hiding import PictureMask
from lookout.video.motion.types import U8
from lookout.video.segments.conversion import Colour, Planes, to_rgb
from lookout.video.segments.greying import shrunk
from lookout.video.segments.picture import placed
from lookout.video.segments.types import CodecError, Reason

#: codecs for which FFmpeg's decoders state where colour samples lie if the stream does not
_LEFT: Final = frozenset({"h264", "hevc", "mpeg4", "mpeg2video"})
_FULL: Final = 2  # AVCOL_RANGE_JPEG


@dataclass(frozen=True, slots=True)
class Format:
    """Size, bits per sample and colours of a stream's pictures."""

    width: int
    height: int
    depth: int
    colour: Colour

    @classmethod
    def of(cls, picture: av.VideoFrame, codec: str) -> Format:
        """Return the format of a picture from the software decoder; NVDEC's pictures have the same."""
        full = picture.color_range == _FULL or picture.format.name.startswith("yuvj")
        colour = Colour(int(picture.colorspace), full, codec in _LEFT)
        return cls(picture.width, picture.height, picture.format.components[0].bits, colour)


@dataclass(frozen=True, slots=True)
class Surface:
    """A picture in a device's memory: unsigned planes [height, width]; U and V may be smaller."""

    format: Format
    planes: Planes

    @property
    def width(self) -> int:
        """Columns of the picture."""
        return self.format.width

    @property
    def height(self) -> int:
        """Rows of the picture."""
        return self.format.height

    @classmethod
    def of(cls, exported: Any, form: Format) -> Surface:
        """Copy an exported picture (DLPack) on its device, because the library reuses the memory.

        Args:
            exported: Luma above colour in one array, as NV12 and P016 (half the rows, U and V side by side),
                NV16 and P216 (as many rows) or three full planes. Rows may be padded in memory. Samples
                deeper than 8 bits have their bits at the top of two bytes.
            form: Format of the picture.

        Raises:
            CodecError: The array cannot be taken (`NO_DECODER`), or has another size (`DIMENSIONS`).
        """
        try:
            array = torch.utils.dlpack.from_dlpack(exported)
        except Exception as error:  # the library may raise anything for a format that it does not export
            raise CodecError(
                Reason.NO_DECODER, f"NVDEC's picture cannot be read through DLPack ({error})"
            ) from None
        if form.depth > 8 and array.dtype == torch.uint8:
            array = array.view(torch.uint16)
        # NVDEC rounds sizes up to even numbers.
        rows, cols = form.height + (form.height & 1), form.width + (form.width & 1)
        split = next((rows for rows in (form.height, rows) if array.shape[0] in _heights(rows)), 0)
        if array.ndim != 2 or not split or array.shape[1] not in (form.width, cols):
            raise CodecError(
                Reason.DIMENSIONS,
                f"NVDEC gave an array of {tuple(array.shape)} for a picture of {form.width}x{form.height}",
            )
        array = array.clone()
        if form.depth > 8:
            array = array.to(torch.int32) >> (16 - form.depth)
        luma, colour = array[: form.height, : form.width], array[split:]
        if colour.shape[0] == 2 * split:
            u, v = (plane[: form.height, : form.width] for plane in (colour[:split], colour[split:]))
            return cls(form, (luma, u, v))
        down = -(-form.height * colour.shape[0] // split)
        u, v = (colour[:down, start::2][:, : -(-form.width // 2)] for start in (0, 1))
        return cls(form, (luma, u, v))


def _heights(rows: int) -> tuple[int, int, int]:
    """Return how many rows an array with `rows` luma rows has: colour at half height, at full, and as two
    planes."""
    return rows + -(-rows // 2), 2 * rows, 3 * rows


class SurfacePainter:
    """Converts surfaces to RGB at model-input size. All their pixels come from here, so masks are applied
    here and nowhere else.

    Args:
        mask: Areas that are grey in every picture; None: no mask.
    """

    def __init__(self, mask: PictureMask | None = None) -> None:
        self._mask = mask

    def paint(self, frame: Surface, geometry: Geometry) -> U8:
        """Return uint8 [out_height, out_width, 3]: masked, area-averaged, turned and placed, in this
        order."""
        _, _, w, h = geometry.place
        size = (h, w) if geometry.rotation in (90, 270) else (w, h)
        form = frame.format
        # A masked copy in software does not state where colour samples lie.
        colour = form.colour if self._mask is None else Colour(form.colour.space, form.colour.full)
        scaled = to_rgb(self._shown(frame, geometry), size, form.depth, colour)
        return placed(scaled.cpu().numpy(), geometry)

    def luma(self, frame: Surface, geometry: Geometry) -> torch.Tensor:
        """Return uint8 [height, width] on the surface's device: the luma plane."""
        luma = self._shown(frame, geometry)[0]
        return luma if frame.format.depth == 8 else (luma >> (frame.format.depth - 8)).to(torch.uint8)

    def _shown(self, frame: Surface, geometry: Geometry) -> Planes:
        if self._mask is None:
            return frame.planes
        grey, mask = 1 << (frame.format.depth - 1), self._mask
        y, u, v = (
            plane.masked_fill(_hidden(mask, geometry, (plane.shape[1], plane.shape[0]), plane.device), grey)
            for plane in frame.planes
        )
        return y, u, v


@lru_cache(maxsize=32)
def _hidden(
    mask: PictureMask, geometry: Geometry, size: tuple[int, int], device: torch.device
) -> torch.Tensor:
    """Return the hidden samples of a plane of (width, height) on a device."""
    return torch.from_numpy(shrunk(mask.hidden(geometry), *size).copy()).to(device)
