"""`python -m bench.motion`: how well each gathering rule finds what really changed between samples.

For every clip both rules run on the same decoded frames. A patch has *changed* where the smoothed luma of the
model's input differs by more than 6 grey levels from the previous sample (`pruning.patch_difference`: the
pixel truth). Per threshold: miss rate (changed patches not found), precision, share of patches kept. Then
whole stride blocks are pruned (anchors, luma fallback, accumulation, merge groups): share of tokens kept, and
the *stale* share: changed patches that the model would still see as they were when last encoded. The last
line is one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lookout.pruning import (
    DEFAULT_GATHER_METHOD,
    DEFAULT_TAU,
    Accumulation,
    Change,
    GatherMethod,
    GatherSettings,
    MaskPolicy,
    MotionGather,
    PatchGrid,
    PrunePolicy,
    Sample,
    luma,
    pack_mask,
    patch_difference,
    prune_block,
    spread,
)
from lookout.video.motion import FrameInfo, Geometry, Motion, VectorSource
from lookout.video.segments import CodecError, DecodeRequest, Limits
from lookout.video.segments.decoder import decode_segment

Mask = npt.NDArray[np.bool_]

TRUTH = 6.0
TAUS = (0.1, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
# The tiny model's input, and a usual one of the models in the papers.
GRIDS = {112: PatchGrid.merged(8, 8, 14, 2), 448: PatchGrid.merged(32, 32, 14, 2)}
FOLDERS = ("fixed", "moving")
DERIVED = (
    "ipcam_like_baseline_gop600_60s.mp4",
    "sim_night_noise_fall.mp4",
    "open_gop_bframes_h264.mp4",
    "fall_h264_nob.mp4",
    "intra_refresh_no_idr.h264",
)
BLOCK = 4  # samples of a stride: 2 s at 2 FPS
LONG = 16  # the paper's stride: 8 s

# Left out of the mean that chooses the defaults: moving cameras (everything changes), and pictures too small
# to have blocks worth the name.
MOVING = frozenset(
    {"androidx_rooftop_320x240_60fps", "carnd_dashcam_highway", "openh264_flower_handheld_720p"}
)
SMALLEST = 240
ENOUGH = 20  # changed patches below which a clip's miss rate says nothing


@dataclass
class Both:
    """One decode, both rules."""

    rows: int
    cols: int
    patch: int
    gathers: dict[GatherMethod, MotionGather] = field(init=False)
    found: dict[GatherMethod, list[Motion]] = field(init=False)
    needs_luma: bool = False
    needs_all: bool = True

    def __post_init__(self) -> None:
        self.gathers = {
            r: MotionGather(GatherSettings(self.rows, self.cols, self.patch, r)) for r in GatherMethod
        }
        self.found = {r: [] for r in GatherMethod}

    def start(self, geometry: Geometry) -> None:
        """As `Gather`."""
        for gather in self.gathers.values():
            gather.start(geometry)

    def push(
        self, frame: FrameInfo, blocks: VectorSource | None, plane: npt.NDArray[np.uint8] | None
    ) -> None:
        """As `Gather`."""
        for gather in self.gathers.values():
            gather.push(frame, blocks, plane)

    def sample(self, frame: FrameInfo) -> None:
        """As `Gather`."""
        for gather in self.gathers.values():
            gather.sample(frame)

    def motions(self) -> list[Motion]:
        """As `Gather`."""
        made = {rule: gather.motions() for rule, gather in self.gathers.items()}
        for rule, motions in made.items():
            self.found[rule] += motions
        return made[DEFAULT_GATHER_METHOD]


@dataclass(frozen=True)
class Clip:
    """What was measured of one clip: counts [found and changed, found, changed, patches] per threshold."""

    name: str
    small: bool
    samples: int
    vectors: int
    steps: dict[GatherMethod, npt.NDArray[np.int64]]
    kept: dict[tuple[GatherMethod, Accumulation], float]
    stale: dict[tuple[GatherMethod, Accumulation], float]
    masks: list[Mask]
    long_shares: dict[
        Accumulation, list[float]
    ]  # groups kept per frame with vectors and an anchor every LONG frames
    default_shares: list[float]

    @property
    def changed(self) -> float:
        """Share of patches that changed."""
        counts = self.steps[GatherMethod.UNION][0]
        return float(counts[2] / max(1, counts[3]))

    @property
    def counts(self) -> bool:
        """Whether the clip takes part in the choice of the defaults."""
        return not self.small and self.name not in MOVING

    def miss(self, rule: GatherMethod, at: int) -> float | None:
        """Changed patches not found, or None where too few changed."""
        found, _, changed, _ = (int(n) for n in self.steps[rule][at])
        return None if changed < ENOUGH else 1 - found / changed

    def precision(self, rule: GatherMethod, at: int) -> float:
        """Found patches that changed."""
        return float(self.steps[rule][at, 0] / max(1, self.steps[rule][at, 1]))

    def share(self, rule: GatherMethod, at: int) -> float:
        """Patches found."""
        return float(self.steps[rule][at, 1] / max(1, self.steps[rule][at, 3]))


def measure(path: Path, size: int) -> Clip:
    """Decode one clip and count. Errors: CodecError."""
    grid = GRIDS[size]
    both = Both(grid.rows, grid.cols, grid.patch)
    request = DecodeRequest(size, size, gather=both, limits=Limits(seconds=900))
    decoded = decode_segment(path.read_bytes(), request)
    planes = luma(decoded.pixels)
    steps = {rule: np.zeros((len(TAUS), 4), np.int64) for rule in GatherMethod}
    vectors = 0
    for n in range(1, len(planes)):
        truth = patch_difference(planes[n], planes[n - 1], grid) > TRUTH
        for rule, counts in steps.items():
            motion = both.found[rule][n]
            if motion.v is None:
                continue
            vectors += rule is DEFAULT_GATHER_METHOD
            for k, tau in enumerate(TAUS):
                found = motion.v > tau
                counts[k] += [(found & truth).sum(), found.sum(), truth.sum(), truth.size]
    kept, stale = {}, {}
    masks: list[Mask] = []
    long_shares: dict[Accumulation, list[float]] = {}
    for rule in GatherMethod:
        for accumulation in Accumulation:
            samples = [
                Sample(
                    pixels, motion.basis, motion.v, intra=frame.info.picture.intra, corrupt=frame.info.corrupt
                )
                for pixels, motion, frame in zip(
                    decoded.pixels, both.found[rule], decoded.frames, strict=True
                )
            ]
            policy = PrunePolicy(
                change=Change.VECTORS,
                rule=rule,
                luma_tau=TRUTH,
                anchor_samples=None,
                accumulation=accumulation,
            )
            result = prune(samples, planes, grid, policy)
            kept[rule, accumulation], stale[rule, accumulation] = result.kept, result.stale
            if (rule, accumulation) == (DEFAULT_GATHER_METHOD, Accumulation.SINCE_ANCHOR):
                masks = result.masks
            if rule is DEFAULT_GATHER_METHOD:
                long = prune(samples, planes, grid, policy, LONG)
                long_shares[accumulation] = [round(float(mask.mean()), 4) for mask in long.masks]
    default = prune(samples, planes, grid, PrunePolicy(), LONG)
    default_shares = [round(float(mask.mean()), 4) for mask in default.masks]
    facts = decoded.facts
    small = min(facts.width, facts.height) < SMALLEST
    return Clip(
        path.stem, small, len(planes), vectors, steps, kept, stale, masks, long_shares, default_shares
    )


@dataclass(frozen=True)
class Pruned:
    """A clip after pruning: shares, and per frame the kept groups."""

    kept: float
    stale: float
    masks: list[Mask]


def prune(
    samples: list[Sample],
    planes: npt.NDArray[np.uint8],
    grid: PatchGrid,
    policy: MaskPolicy,
    length: int = BLOCK,
) -> Pruned:
    """Prune stride block after stride block and look at what the model would see."""
    seen = planes[0].copy()
    changed = missed = tokens = frames = 0
    masks: list[Mask] = []
    carry = None
    for start in range(0, len(samples), length):
        block, carry = prune_block(samples[start : start + length], grid, policy, carry)
        for n, mask in enumerate(block, start):
            differs = patch_difference(planes[n], seen, grid) > TRUTH
            fresh = spread(mask.keep, grid)
            changed += int(differs.sum())
            missed += int((differs & ~fresh).sum())
            area = np.repeat(np.repeat(fresh, grid.patch, axis=0), grid.patch, axis=1)
            seen[area] = planes[n][area]
            tokens += mask.kept
            frames += 1
            masks.append(mask.keep)
    whole = len(grid.row_taps) * len(grid.col_taps)
    return Pruned(tokens / max(1, frames * whole), missed / max(1, changed), masks)


def mean(clips: list[Clip], rule: GatherMethod, at: int) -> dict[str, float]:
    """The mean over clips (each weighs the same): miss rate, precision, share kept."""
    chosen = [c for c in clips if c.counts]
    misses = [m for c in chosen if (m := c.miss(rule, at)) is not None]
    moving = [c for c in chosen if c.miss(rule, at) is not None]
    return {
        "miss": round(float(np.mean(misses)), 4),
        "precision": round(float(np.mean([c.precision(rule, at) for c in moving])), 4),
        "kept": round(float(np.mean([c.share(rule, at) for c in chosen if c.steps[rule][at, 3]])), 4),
    }


def cheapest(curve: dict[float, dict[str, float]], limit: float) -> float | None:
    """The largest threshold whose miss rate is at most `limit`."""
    return max((tau for tau, at in curve.items() if at["miss"] <= limit), default=None)


def footage() -> Path | None:
    """Where real clips are: LOOKOUT_FOOTAGE, else the folder beside the project."""
    named = os.environ.get("LOOKOUT_FOOTAGE")
    folder = Path(named) if named else Path(__file__).resolve().parents[1].parent / "shared" / "video"
    return folder if folder.is_dir() else None


def clips_of(root: Path) -> list[Path]:
    """The clips to measure; a folder of another shape gives all its files."""
    known = [p for name in FOLDERS for p in sorted((root / name).glob("*")) if p.is_file()]
    known += [root / "derived" / name for name in DERIVED if (root / "derived" / name).is_file()]
    return known or sorted(p for p in root.rglob("*") if p.is_file() and p.suffix not in {".json", ".md"})


def by_clip(clips: list[Clip]) -> dict[str, dict[str, object]]:
    """Every clip at the default thresholds: shares of patches and tokens; a miss rate is None where nothing
    changed.

    `vectors`: share of samples that depend on them; `in the mean`: not a moving camera, nor a small picture.
    """
    default = (DEFAULT_GATHER_METHOD, Accumulation.SINCE_ANCHOR)
    rows: dict[str, dict[str, object]] = {}
    for clip in clips:
        row: dict[str, object] = {
            "changed": round(clip.changed, 4),
            "vectors": round(clip.vectors / max(1, clip.samples), 4),
        }
        for rule in GatherMethod:
            at = TAUS.index(DEFAULT_TAU[rule])
            miss = clip.miss(rule, at)
            row[f"{rule.value} miss"] = None if miss is None else round(miss, 4)
            row[f"{rule.value} kept"] = round(clip.share(rule, at), 4)
        row |= {"tokens": round(clip.kept[default], 4), "stale": round(clip.stale[default], 4)}
        rows[clip.name] = row | {"in the mean": clip.counts}
    return rows


def report(size: int, clips: list[Clip], limit: float) -> dict[str, object]:
    """Print the tables of one model input and return them."""
    at = {rule: TAUS.index(DEFAULT_TAU[rule]) for rule in GatherMethod}
    print(f"\n{size}x{size} input, patches of {GRIDS[size].patch}. At the default thresholds: miss / kept")
    heads = [f"{rule.value} {DEFAULT_TAU[rule]:g} px" for rule in GatherMethod]
    print(f"{'clip':36} changed  vectors  " + "  ".join(f"{h:>18}" for h in heads) + "  tokens  stale")
    for c in clips:
        cells = []
        for rule in GatherMethod:
            miss = c.miss(rule, at[rule])
            cells.append(f"{'  -  ' if miss is None else f'{miss:.3f}'} / {c.share(rule, at[rule]):.3f}")
        default = (DEFAULT_GATHER_METHOD, Accumulation.SINCE_ANCHOR)
        print(
            f"{c.name[:36]:36} {c.changed:7.3f}  {c.vectors / max(1, c.samples):7.2f}  "
            + "  ".join(f"{cell:>18}" for cell in cells)
            + f"  {c.kept[default]:6.3f}  {c.stale[default]:5.3f}{'' if c.counts else '  (not in the mean)'}"
        )
    curves = {r.value: {tau: mean(clips, r, k) for k, tau in enumerate(TAUS)} for r in GatherMethod}
    print("\nmean over the clips that count: miss / precision / kept")
    for tau in TAUS:
        row = [curves[r.value][tau] for r in GatherMethod]
        print(
            f"  tau {tau:<5g}"
            + "   ".join(
                f"{r.value:>10} {v['miss']:.3f} / {v['precision']:.3f} / {v['kept']:.3f}"
                for r, v in zip(GatherMethod, row, strict=True)
            )
        )
    chosen = [c for c in clips if c.counts]
    blocks = {
        f"{rule.value} {accumulation.value}": {
            "tokens": round(float(np.mean([c.kept[rule, accumulation] for c in chosen])), 4),
            "stale": round(float(np.mean([c.stale[rule, accumulation] for c in chosen])), 4),
        }
        for rule in GatherMethod
        for accumulation in Accumulation
    }
    print("\nwhole blocks (anchor, luma where vectors are missing, merge groups), mean over the same clips")
    for name, v in blocks.items():
        print(f"  {name:26} tokens kept {v['tokens']:.3f}   stale {v['stale']:.3f}")
    budget = {r.value: cheapest(curves[r.value], limit) for r in GatherMethod}
    print(f"\nlargest threshold with a miss rate of at most {limit:g}: {budget}")
    return {"curves": curves, "blocks": blocks, "largest_tau": budget, "by clip": by_clip(clips)}


def motion_levels(size: int, clips: list[Clip]) -> dict[str, object]:
    """Keep masks of clips of low, middle and high motion: thirds by the share of
    tokens kept (as CodecSight 6.1.4).

    Per level: the mean share over the third, and of its three longest clips up to 80 frames, each as the hex
    digits of `pruning.pack_mask` on the group grid, strides of four frames opened by an anchor.
    """
    grid = GRIDS[size]
    default = (DEFAULT_GATHER_METHOD, Accumulation.SINCE_ANCHOR)
    ranked = sorted((c for c in clips if not c.small), key=lambda c: c.kept[default])
    out: dict[str, object] = {"group_rows": len(grid.row_taps), "group_cols": len(grid.col_taps)}
    for level, third in zip(
        ("low", "middle", "high"), np.array_split(np.arange(len(ranked)), 3), strict=True
    ):
        members = [ranked[i] for i in third]
        long = sorted(members, key=lambda c: -c.samples)[:3]
        out[level] = {
            "kept": round(float(np.mean([c.kept[default] for c in members])), 4),
            "clips": {c.name: [pack_mask(m).hex() for m in c.masks[:80]] for c in long},
        }
    return out


def repeated(shares: list[float], frames: int = 80) -> list[float]:
    """The whole blocks of a clip's frames, over and over up to so many frames."""
    whole = shares[: len(shares) // LONG * LONG]
    return (whole * (frames // len(whole) + 1))[:frames]


def keep_ratios(clips: list[Clip], frames: int = 80) -> dict[str, object]:
    """Share of groups kept in each of 80 frames (a shorter clip is repeated) of one clip a level of motion,
    with vectors and either accumulation (`keep`: since the anchor), and under the default masks.

    A stride of 16 frames (8 s); with vectors it has one anchor, as in the paper. The clip of a level is the
    middle one of its third of the fixed cameras.
    """

    default = Accumulation.SINCE_ANCHOR
    chosen = [c for c in clips if c.counts and c.samples > LONG]
    ranked = sorted(chosen, key=lambda c: float(np.mean(c.long_shares[default][: c.samples // LONG * LONG])))
    out: dict[str, object] = {}
    for level, third in zip(
        ("low", "middle", "high"), np.array_split(np.arange(len(ranked)), 3), strict=True
    ):
        clip = ranked[third[len(third) // 2]]
        keep = repeated(clip.long_shares[default], frames)
        out[level] = {
            "clip": clip.name,
            "rule": DEFAULT_GATHER_METHOD.value,
            "mean": round(float(np.mean(keep)), 4),
            "keep": keep,
            "since_encoded": repeated(clip.long_shares[Accumulation.SINCE_ENCODED], frames),
            "default": repeated(clip.default_shares, frames),
        }
    return out


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--size", type=int, choices=sorted(GRIDS), action="append", help="model input; default: all"
    )
    parser.add_argument(
        "--limit", type=float, default=0.05, help="miss rate allowed when choosing a threshold"
    )
    parser.add_argument("--masks", type=Path, help="also write keep masks of low, middle and high motion")
    parser.add_argument("--ratios", type=Path, help="also write shares of groups kept at the larger input")
    arguments = parser.parse_args()
    root = footage()
    if root is None:
        print("skipped: no real clips (set LOOKOUT_FOOTAGE to a folder of them)", file=sys.stderr)
        print(json.dumps({"bench": "motion", "skipped": "no footage"}))
        return 0
    results: dict[str, object] = {}
    levels: dict[str, object] = {}
    ratios: dict[str, object] = {}
    for size in arguments.size or sorted(GRIDS):
        clips = []
        for path in clips_of(root):
            try:
                clip = measure(path, size)
            except CodecError as error:
                print(f"left out {path.name}: {error}", file=sys.stderr)
                continue
            if not clip.steps[GatherMethod.UNION][0, 3]:
                print(f"left out {path.name}: its codec gives no vectors", file=sys.stderr)
                continue
            clips.append(clip)
        results[str(size)] = {"clips": len(clips), **report(size, clips, arguments.limit)}
        levels[str(size)] = motion_levels(size, clips)
        ratios = keep_ratios(clips)
    if arguments.ratios:
        arguments.ratios.write_text(json.dumps(ratios) + "\n")
    if arguments.masks:
        arguments.masks.write_text(json.dumps(levels, indent=1) + "\n")
    default = {"rule": DEFAULT_GATHER_METHOD.value, "tau": DEFAULT_TAU[DEFAULT_GATHER_METHOD]}
    print(json.dumps({"bench": "motion", "truth": TRUTH, "default": default, "inputs": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
