"""`python -m bench.masking`: what privacy masks cost in CPU time, by picture size.

Eight seconds of a real clip, with 30 pictures a second in H.264, are processed at three sizes with a tenth of
the picture hidden:

- `decode`: decoding with sampling, without a mask; the other figures are multiples of it.
- `masked_decode`: the same with the mask.
- `publish`: decoded, greyed and encoded again at the same size, as before publishing
  (`--mask-before-publishing`).
- `clip`: decoded, greyed and encoded again at most 1280 pixels wide, as for clips and live views.

`cores`: CPU seconds of `publish` per second of footage, that is, the cores that one camera needs. The faster
of two runs counts. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.clips import FPS, SOURCE, base_clip
from bench.motion import footage
from lookout.video.motion.hiding import MaskLayer, PictureMask
from lookout.video.segments import DecodeRequest, SoftwareDecoder, cut
from lookout.video.segments.joining import join
from lookout.video.segments.masked_clip import masked_segment
from lookout.video.segments.types import ClipSegment, JoinRequest

SIZES: Final = ((640, 360), (1280, 720), (1920, 1080))
MASK: Final = PictureMask((MaskLayer(hide=(((0.6, 0.1), (0.9, 0.1), (0.9, 0.43), (0.6, 0.43)),)),))
RUNS: Final = 2


def least(work: Callable[[], object]) -> float:
    """CPU seconds of the quickest run, those of all threads."""
    times = []
    for _ in range(RUNS):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return min(times)


def measured(data: bytes, pictures: int) -> dict[str, float]:
    """The figures of one size.

    Args:
        data: A segment.
        pictures: How many it has.
    """
    seconds, decoder = pictures / FPS, SoftwareDecoder()
    clip = JoinRequest((ClipSegment(data, 1, 0, 0),), 0, 1 << 40, 1 << 28, mask=MASK)
    decode = least(lambda: decoder.decode(data, DecodeRequest(224, 224)))
    publish = least(lambda: masked_segment(data, MASK, 1 << 28))
    return {
        "decode": round(decode / seconds, 4),
        "masked_decode": round(
            least(lambda: decoder.decode(data, DecodeRequest(224, 224, mask=MASK))) / decode, 2
        ),
        "publish": round(publish / decode, 2),
        "clip": round(least(lambda: join(clip)) / decode, 2),
        "cores": round(publish / seconds, 2),
    }


def main() -> None:
    """Print the figures."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    clips = footage()
    if clips is None:
        raise SystemExit("no real footage: set LOOKOUT_FOOTAGE to its folder")
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            segment = next(iter(cut(base_clip(clips / SOURCE, Path(folder), size))))
            name = f"{size[1]}p"
            figures[name] = {"megapixels": round(size[0] * size[1] / 1e6, 2)}
            figures[name] |= measured(segment.data, segment.frames)
            print(name, figures[name], flush=True)
    print(json.dumps({"sizes": figures}))


if __name__ == "__main__":
    main()
