"""Writes the bits that a codec spent on every block of clips, for `bench.bits`.

It needs `codec-video-prep`, a patched FFmpeg that requires numpy 1, and therefore a separate environment:

    python -m venv FOLDER && FOLDER/bin/pip install codec-video-prep "numpy<2"
    FOLDER/bin/python bench/bits_dump.py OUT CLIP...

For each clip it writes OUT/CLIP.npz: `blocks` [pictures, rows, columns], the bits of macroblocks or CTUs;
`fine`, the bits of blocks of 4 x 4 pixels; `cpu`, the seconds that it took.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

FINE = "sub_mb_bit_cost"


def main() -> None:
    """Write the files."""
    from codec_video_prep.cv_reader_fast import (  # type: ignore[import-not-found,import-untyped]
        read_video_fast,
    )

    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for clip in map(Path, sys.argv[2:]):
        begun = time.process_time()
        pictures = read_video_fast(str(clip), thread_count=1, export_bitcost=1, thread_type="slice")
        spent = time.process_time() - begun
        costs = [picture.get("bitcost") for picture in pictures or ()]
        known = next((cost for cost in costs if cost), None)
        if known is None:
            print(f"{clip}: no bits", flush=True)
            continue
        avc = "mb_bit_cost" in known
        name, width = ("mb_bit_cost", "mb_width") if avc else ("ctu_bit_cost", "ctb_width")
        # A picture without any was decoded without its slices: no bits are known of it.
        costs = [cost or {key: np.zeros_like(known[key]) for key in (name, FINE)} for cost in costs]
        blocks = np.stack([cost[name][:, : known[width]] for cost in costs]).astype(np.float32)
        fine = np.stack([cost[FINE] for cost in costs]).astype(np.float32)
        np.savez_compressed(out / f"{clip.name}.npz", blocks=blocks, fine=fine, cpu=spent)
        print(f"{clip}: {len(costs)} pictures, {spent:.2f} s", flush=True)


if __name__ == "__main__":
    main()
