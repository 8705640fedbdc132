"""`python -m bench.motion`: shares of tokens kept in three real clips of fixed cameras.

It writes `motion.json`, from which FLOPs at full model size are counted. To choose the clips, fixed cameras
were sorted by the share that masks from vectors keep (CodecSight, 6.1.4); these are the middle clips of the
three thirds. Per frame, in strides of 16 samples: `keep` (vectors since the anchor, the paper),
`since_encoded` (vectors since encoded) and `default` (the default masks).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np

from lookout.pruning import (
    DEFAULT_GATHER_METHOD,
    Accumulation,
    Change,
    GatherSettings,
    MaskPolicy,
    MotionGather,
    PatchGrid,
    PrunePolicy,
    Sample,
    prune_block,
)
from lookout.video.segments import DecodedSegment, DecodeRequest, Limits
from lookout.video.segments.decoder import decode_segment

GRID = PatchGrid.merged(32, 32, 14, 2)  # 448 pixels, a usual input of the models in the papers
LONG = 16  # samples of the paper's stride: 8 s
PIXEL_LIMIT = 6.0  # grey levels
FOLDERS = ("fixed", "moving")
DERIVED = (
    "ipcam_like_baseline_gop600_60s.mp4",
    "sim_night_noise_fall.mp4",
    "open_gop_bframes_h264.mp4",
    "fall_h264_nob.mp4",
    "intra_refresh_no_idr.h264",
)
#: moving cameras, where everything changes
MOVING = frozenset(
    {"androidx_rooftop_320x240_60fps", "carnd_dashcam_highway", "openh264_flower_handheld_720p"}
)
#: by the names of `bench.windows.LEVELS`
CLIPS = {
    "walk": "intel_one_by_one_person",
    "night": "gmdcsa_s3_adl20_night",
    "fall": "gmdcsa_s2_fall12_night",
}
SMALLEST = 240  #: pixels; smaller pictures have no useful prediction blocks


def footage() -> Path | None:
    """The folder of real clips: LOOKOUT_FOOTAGE, else the one next to the project."""
    named = os.environ.get("LOOKOUT_FOOTAGE")
    folder = Path(named) if named else Path(__file__).resolve().parents[1].parent / "shared" / "video"
    return folder if folder.is_dir() else None


def clips_of(root: Path) -> list[Path]:
    """The clips to measure; a folder of another layout gives all its files."""
    known = [p for name in FOLDERS for p in sorted((root / name).glob("*")) if p.is_file()]
    known += [root / "derived" / name for name in DERIVED if (root / "derived" / name).is_file()]
    return known or sorted(p for p in root.rglob("*") if p.is_file() and p.suffix not in {".json", ".md"})


def samples_of(decoded: DecodedSegment) -> list[Sample]:
    """What masks are made from, of every decoded sample; the segment was decoded with a `MotionGather`."""
    return [
        Sample(pixels, motion.basis, motion.v, intra=frame.info.picture.intra, corrupt=frame.info.corrupt)
        for pixels, frame in zip(decoded.pixels, decoded.frames, strict=True)
        if (motion := frame.motion) is not None
    ]


def shares(samples: list[Sample], policy: MaskPolicy) -> list[float]:
    """The share of groups kept in each sample, in strides of `LONG` samples."""
    kept: list[float] = []
    carry = None
    for start in range(0, len(samples), LONG):
        block, carry = prune_block(samples[start : start + LONG], GRID, policy, carry)
        kept += [round(float(mask.keep.mean()), 4) for mask in block]
    return kept


def repeated(kept: list[float], frames: int = 80) -> list[float]:
    """The whole strides of a clip, over and over up to so many frames."""
    whole = strides(kept)
    return (whole * (frames // len(whole) + 1))[:frames]


def strides(kept: list[float]) -> list[float]:
    """The samples of a clip's whole strides."""
    return kept[: len(kept) // LONG * LONG]


def policies() -> dict[str, PrunePolicy]:
    """The three kinds of masks; those from vectors have one anchor a stride, as in the paper."""

    def vectors(accumulation: Accumulation) -> PrunePolicy:
        return PrunePolicy(
            change=Change.VECTORS,
            rule=DEFAULT_GATHER_METHOD,
            luma_tau=PIXEL_LIMIT,
            anchor_samples=None,
            accumulation=accumulation,
        )

    return {
        "keep": vectors(Accumulation.SINCE_ANCHOR),
        "since_encoded": vectors(Accumulation.SINCE_ENCODED),
        "default": PrunePolicy(),
    }


def measure(path: Path) -> dict[str, list[float]] | None:
    """The shares of a clip by kind of masks, or None if it is too small, too short or has no vectors.

    Raises:
        CodecError: The clip cannot be decoded.
    """
    gather = MotionGather(GatherSettings(GRID.rows, GRID.cols, GRID.patch, DEFAULT_GATHER_METHOD))
    decoded = decode_segment(
        path.read_bytes(), DecodeRequest(448, 448, gather=gather, limits=Limits(seconds=900))
    )
    samples = samples_of(decoded)
    small = min(decoded.facts.width, decoded.facts.height) < SMALLEST
    if small or len(samples) <= LONG or all(sample.v is None for sample in samples):
        return None
    return {kind: shares(samples, policy) for kind, policy in policies().items()}


def main() -> int:
    """Measure the clips and write the file."""
    root = footage()
    if root is None:
        print("no real clips: set LOOKOUT_FOOTAGE to a folder of them", file=sys.stderr)
        return 1
    paths = {path.stem: path for path in clips_of(root)}
    levels = {}
    for level, name in CLIPS.items():
        clip = measure(paths[name]) if name in paths else None
        if clip is None:
            print(f"{name} is not in {root}, or has no motion vectors to use", file=sys.stderr)
            return 1
        kept = {kind: repeated(values) for kind, values in clip.items()}
        levels[level] = {"clip": name, "mean": round(float(np.mean(kept["keep"])), 4), **kept}
        print(f"{level}: {name}, {levels[level]['mean']:.1%} kept")
    Path(__file__).with_suffix(".json").write_text(json.dumps(levels) + "\n")
    print(json.dumps({"bench": "motion", "clips": len(levels)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
