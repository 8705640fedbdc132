"""NVDEC through PyNvVideoCodec: samples and motion vectors against the software decoder's, and the pace.

Pictures stay on the device (`lookout.video.segments.surface`): samples must be equal, byte for byte.

On a CPU the library is the fake of tests/unit/video/segments/test_nvdec.py, which decodes with FFmpeg.
"""

from __future__ import annotations

import time
from typing import Any, Final

import numpy as np

from lookout.video.segments import DecodeRequest, SamplingGrid, SoftwareDecoder
from lookout.video.segments.nvdec import NvdecDecoder, load_library
from tests.gpu.scale import Scale
from tests.unit.video.segments.clips import encode

CODECS: Final = {"h264": "libx264", "hevc": "libx265"}
REQUEST: Final = DecodeRequest(448, 448, SamplingGrid(500_000))


def run(scale: Scale) -> dict[str, Any]:
    """Return by codec: samples, largest difference of a pixel, agreement of vectors, and how many times
    longer the software decoder takes. The first decode is not timed: it starts CUDA.

    Raises:
        AssertionError: The two choose other pictures, or their samples differ.
    """
    if scale.device.type == "cpu":
        from tests.unit.video.segments.test_nvdec import fake_library

        library: Any = fake_library()
    else:
        library = load_library()
    size, seconds = ((160, 96), 2) if scale.device.type == "cpu" else ((1920, 1080), 20)
    decoder, truth = NvdecDecoder(library=library), SoftwareDecoder()
    out: dict[str, Any] = {}
    for name, codec in CODECS.items():
        clip = encode("mp4", codec, frames=25 * seconds, fps=25, size=size, gop=50, bframes=2, speed=2)
        decoder.decode(clip, REQUEST)
        start = time.perf_counter()
        ours = decoder.decode(clip, REQUEST)
        middle = time.perf_counter()
        theirs = truth.decode(clip, REQUEST)
        end = time.perf_counter()
        if [frame.slot for frame in ours.frames] != [frame.slot for frame in theirs.frames]:
            raise AssertionError(f"{name}: NVDEC samples other pictures than the software decoder")
        largest = int(np.abs(ours.pixels.astype(int) - theirs.pixels).max())
        if largest:
            raise AssertionError(f"{name}: samples differ by up to {largest} levels")
        out[name] = {
            "samples": len(ours.frames),
            "largest_difference": largest,
            "vector_agreement": round(decoder.check(clip), 4),
            "software_over_nvdec": round((end - middle) / (middle - start), 3),
        }
    return out
