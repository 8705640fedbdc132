"""`python -m bench.bits --bits FOLDER`: masks from the bits spent per block, compared with vectors and luma.

LLaVA-OneVision-2 prunes by bits. FOLDER has one file per clip, which `bench/bits_dump.py` wrote in a separate
environment; `--copies FOLDER` writes HEVC copies of the H.264 clips for it and ends. For every interval
between two samples (at two a second) that contains no keyframe, each signal scores the groups of the model's
grid (448 pixels). The truth is the groups that changed by more than 6 grey levels (mean of a patch). Of all
groups of a clip, each signal keeps those with the best scores, twice as many as changed.

- `bits`: bits of macroblocks or CTUs; `bits, 4 x 4`: bits of the smallest blocks; both are spread over the
  groups by area.
- `vectors`: the largest displacement, as in the preset `codecsight`. HEVC gives none. `random`: a random
  choice.
- `default masks`: the product's masks, from luma, with as many tokens as they keep. The truth is defined by
  luma, so their recall is high by construction.
- `cpu`: CPU seconds per second of footage, including decoding: for the dump, and for the product's decoder
  with vectors and without.

Figures are means over clips with 95 % intervals (bootstrap). The last line is JSON, with every clip.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import av
import numpy as np
from numpy.typing import NDArray

from bench.motion import GRID, SMALLEST, clips_of, footage, samples_of, shares
from bench.workplace import print_tables
from lookout.pruning import GatherMethod, GatherSettings, MotionGather, PrunePolicy, prune_block
from lookout.video.segments import DecodedSegment, DecodeRequest, Limits
from lookout.video.segments.decoder import decode_segment
from watchbench import encode
from watchbench.evaluation.intervals import Drawn, edges

CHANGED: Final = 6.0  # grey levels
TIMES_KEPT: Final = 2
SIDE: Final = 448
GROUPS: Final = 16  # along a side
SIGNALS: Final = ("bits", "bits, 4 x 4", "vectors", "random", "default masks")
LONGEST_COPY: Final = 400  # pictures
P = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Timed:
    """The pictures of a clip in the order they are shown: seconds from the first, and which are keyframes."""

    seconds: NDArray[np.float64]
    key: NDArray[np.bool_]


def timed(path: Path) -> Timed:
    """When the pictures of a clip are shown."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        rate = float(stream.average_rate or 25)
        shown = [(frame.time, frame.key_frame) for frame in container.decode(stream)]
    seconds = np.array([n / rate if when is None else when for n, (when, _) in enumerate(shown)], float)
    return Timed(seconds - seconds[0], np.array([key for _, key in shown], bool))


def spread(maps: P, groups: int = GROUPS) -> P:
    """Maps [n, rows, columns] of a picture's blocks on the model's groups, by area: [n, groups, groups]."""
    rows, columns = (_overlaps(size, groups) for size in maps.shape[1:])
    return np.einsum("gr,nrc,hc->ngh", rows, maps, columns).astype(np.float32)


def _overlaps(size: int, groups: int) -> P:
    """The share of each of `size` equal pieces that lies in each of the groups: [groups, size]."""
    edges_of, own = np.linspace(0, groups, size + 1), np.arange(groups)[:, None]
    return np.clip(np.minimum(edges_of[1:], own + 1) - np.maximum(edges_of[:-1], own), 0, None).astype(
        np.float32
    ) * np.float32(size / groups)


def largest(patches: NDArray[Any]) -> P:
    """Of the patches of each group the largest: [2 rows, 2 columns] -> [rows, columns]."""
    rows, columns = patches.shape
    return patches.reshape(rows // 2, 2, columns // 2, 2).max((1, 3)).astype(np.float32)


def recall(scores: P, truth: NDArray[np.bool_], count: int) -> float:
    """Share of what changed among the groups with the best scores; equal scores are drawn."""
    draw = np.random.default_rng(0).random(scores.size)
    kept = np.zeros(scores.size, bool)
    kept[np.lexsort((draw, -scores.ravel()))[:count]] = True
    return float((kept & truth.ravel()).sum() / truth.sum())


def decoded(data: bytes, method: GatherMethod | None) -> tuple[DecodedSegment, float]:
    """A clip's samples, and the seconds of CPU that decoding took."""
    gather = (
        None if method is None else MotionGather(GatherSettings(GRID.rows, GRID.cols, GRID.patch, method))
    )
    begun = time.process_time()
    request = DecodeRequest(SIDE, SIDE, gather=gather, limits=Limits(seconds=900))
    return decode_segment(data, request), time.process_time() - begun


def measured(path: Path, file: Path) -> dict[str, Any] | None:
    """The figures of one clip; None if nothing of it can be compared."""
    found, shown, data = np.load(file), timed(path), path.read_bytes()
    segment, with_vectors = decoded(data, GatherMethod.UNION)
    _, plain = decoded(data, None)
    samples = samples_of(segment)
    at = np.array([frame.stream_us for frame in segment.frames]) / 1e6
    at -= at[0]
    count = min(len(found["blocks"]), len(shown.seconds))
    inside = [
        np.flatnonzero((shown.seconds[:count] > before) & (shown.seconds[:count] <= now + 1e-6))
        for before, now in pairwise(at)
    ]
    places = [n for n, own in enumerate(inside) if len(own) and not shown.key[own].any()]
    if len(places) < 3 or min(segment.facts.width, segment.facts.height) < SMALLEST:
        return None
    grey = segment.pixels.astype(np.float32).mean(3).reshape(len(at), 32, 14, 32, 14).mean((2, 4))
    truth = np.stack([largest(np.abs(grey[n + 1] - grey[n])) for n in places]) > CHANGED
    if not truth.any():
        return None
    maps = {"bits": found["blocks"], "bits, 4 x 4": found["fine"]}
    scores = {name: spread(np.stack([bits[inside[n]].sum(0) for n in places])) for name, bits in maps.items()}
    moved = [samples[n + 1].v for n in places]
    if any(v is not None for v in moved):
        zero = np.zeros((32, 32), np.float32)
        known = [zero if v is None else np.nan_to_num(v.astype(np.float32), posinf=1e4) for v in moved]
        scores["vectors"] = np.stack([largest(v) for v in known])
    scores["random"] = np.random.default_rng(1).random(truth.shape).astype(np.float32)
    kept = min(truth.size, TIMES_KEPT * int(truth.sum()))
    seconds = float(at[-1])
    row: dict[str, Any] = {
        "codec": segment.facts.codec,
        "intervals": len(places),
        "changed": round(float(truth.mean()), 4),
        "kept": round(kept / truth.size, 4),
        "recall": {name: round(recall(own, truth, kept), 4) for name, own in scores.items()},
    }
    block, _ = prune_block(samples, GRID, PrunePolicy(anchor_samples=None))
    masks = np.stack([block[n + 1].keep for n in places])
    row["recall"]["default masks"] = round(float((masks & truth).sum() / truth.sum()), 4)
    row["kept by default masks"] = round(float(np.mean(shares(samples, PrunePolicy()))), 4)
    spent = {"bits": float(found["cpu"]), "vectors": with_vectors, "luma": plain}
    return row | {"cpu": {name: round(value / seconds, 4) for name, value in spent.items()}}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the clips of a codec, with intervals; bits less vectors on the same clips."""
    drawn = Drawn.of(len(rows))
    out: dict[str, Any] = {"clips": len(rows)}
    for name in SIGNALS:
        values = np.array([row["recall"].get(name, np.nan) for row in rows])
        if not np.isnan(values).all():
            out[name] = round(float(np.nanmean(values)), 3)
            out[f"{name} 95 %"] = edges(drawn.mean(values))
    for name in ("vectors", "random"):
        less = np.array([row["recall"]["bits, 4 x 4"] - row["recall"].get(name, np.nan) for row in rows])
        if not np.isnan(less).all():
            out[f"4 x 4 less {name} 95 %"] = edges(drawn.mean(less))
    for name in ("kept", "kept by default masks"):
        out[name] = round(float(np.mean([row[name] for row in rows])), 3)
    for name in ("bits", "vectors", "luma"):
        out[f"cpu, {name}"] = round(float(np.mean([row["cpu"][name] for row in rows])), 4)
    return out


def copies(root: Path, folder: Path) -> None:
    """Write HEVC copies of the H.264 clips that are not long."""
    for path in clips_of(root):
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            if stream.codec_context.name != "h264" or not 0 < stream.frames <= LONGEST_COPY:
                continue
            rate = Fraction(stream.average_rate or 25)
            target = folder / f"{path.stem}-hevc.mp4"
            if not target.is_file():
                pictures = (frame.to_ndarray(format="rgb24") for frame in container.decode(stream))
                encode.write(pictures, target, rate, encode.Encoding(codec="hevc", gop_s=4.0))
                print(target, flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bits", type=Path, default=Path("out/bits"), help="files of bits_dump.py")
    parser.add_argument("--copies", type=Path, help="folder of HEVC copies; alone: write them")
    options = parser.parse_args()
    root = footage()
    if root is None:
        raise SystemExit("no real footage: set LOOKOUT_FOOTAGE to its folder")
    if options.copies is not None and not options.bits.is_dir():
        copies(root, options.copies)
        return
    clips = [*clips_of(root), *(sorted(options.copies.glob("*.mp4")) if options.copies else ())]
    rows: dict[str, dict[str, Any]] = {}
    for path in clips:
        file = options.bits / f"{path.name}.npz"
        row = measured(path, file) if file.is_file() else None
        if row is not None:
            rows[path.stem] = row
            print(path.stem, row, flush=True)
    codecs = sorted({row["codec"] for row in rows.values()})
    tables = {codec: summary([row for row in rows.values() if row["codec"] == codec]) for codec in codecs}
    print_tables({"codecs": tables})
    print(json.dumps({"tables": {"codecs": tables}, "per camera": rows}))


if __name__ == "__main__":
    main()
