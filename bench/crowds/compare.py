"""Rules of masks on the same cameras: what a rule keeps and answers, and how rules compare at equal cost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from bench import motion
from bench.answered import Answered, Cut, chains_of, default, interval, over_period, real
from bench.codecsight.policies import WHOLE, kept_behind
from bench.codecsight.scores import Answers, by_window
from bench.codecsight.streams import Outcome, Workplace, encoded_share, judged, outcome, window_times
from bench.codecsight.table import CONTEXT_ROWS, PRODUCT_ROWS, at_full_size as cost_at_full_size
from bench.crowds.films import films
from bench.crowds.masks import ONE_A_STRIDE, Anywhere, EvenFrames, Floor
from bench.results import Results
from bench.windows import MOTION
from lookout.models import find_model
from lookout.models.digest import folder_digest
from lookout.models.engines import load_engine
from lookout.models.families import load_tower
from lookout.models.windows import DEFAULT_PRESET, PRESETS, StrideBlock
from lookout.pruning import MaskPolicy, Sample, prune_block
from lookout.streams import ClipFrames, read_clip, strides_of
from lookout.video.segments import DecodeRequest, Limits
from lookout.video.segments.decoder import decode_segment
from watchbench import scenes
from watchbench.questions import NAMES, answers

CUTS: Final = {"80 frames": Cut(16, 15, 6), "20 frames": Cut(4, 15, 10)}
CROWD: Final = NAMES.index("many")
ROWS: Final = {
    "crowd": [CROWD],
    "product": PRODUCT_ROWS,
    "other product": [row for row in PRODUCT_ROWS if row != CROWD],
    "contextual": CONTEXT_ROWS,
}
SIMPLE: Final[dict[str, tuple[Callable[[float], MaskPolicy], float, float]]] = {
    "anywhere": (Anywhere, 0.0, 1.0),
    "floor": (Floor, 0.0, 16.0),
    "even frames": (EvenFrames, 0.0, 15.0),
    "lower threshold": (lambda tau: replace(ONE_A_STRIDE, luma_tau=tau), 6.0, 0.0),
}
"""By name: the rule, its cheapest and its dearest setting."""
STEPS = 9  # of halving until a simple rule has as many tokens

RuleOutcomes = dict[str, Outcome]


@dataclass(frozen=True, slots=True)
class Clip:
    """A camera with its decoded samples; a scene where it is rendered."""

    name: str
    frames: ClipFrames
    scene: scenes.Scene | None = None


def blocks_of(clip: Clip, masks: MaskPolicy, place: Workplace) -> list[StrideBlock]:
    """The first chain of a camera's blocks."""
    return chains_of(clip.name, clip.frames, place.tower, masks, place.cut)[0]


def group_count(clip: Clip, masks: MaskPolicy, place: Workplace) -> int:
    """Groups that a rule keeps of a camera's first chain."""
    carry, count = None, 0
    strides = [frames for _, frames in strides_of(clip.frames.frames, place.cut.frames)]
    for frames in strides[: place.cut.strides]:
        samples = [frame.sample for frame in frames]
        block, carry = prune_block(samples, place.tower.grid, masks, carry)
        count += sum(mask.kept for mask in block)
    return count


def at_cost(
    name: str, clips: Sequence[Clip], group: str, like: tuple[str, MaskPolicy], place: Workplace
) -> MaskPolicy:
    """A simple rule that keeps as many groups of some cameras as another rule, given with its name, does."""
    make, low, high = SIMPLE[name]
    key = f"{group}, {place.cut.frames}, {len(clips)} cameras, {name} as {like[0]}"
    if key not in place.results:
        aim = sum(group_count(clip, like[1], place) for clip in clips)
        for _ in range(STEPS):
            middle = (low + high) / 2
            groups = sum(group_count(clip, make(middle), place) for clip in clips)
            low, high = (middle, high) if groups < aim else (low, middle)
        place.results.add(key, (low + high) / 2)
    return make(float(place.results.found[key]))


def camera_outcomes(
    clip: Clip, kinds: Mapping[str, MaskPolicy], place: Workplace, whole: Sequence[str] = ()
) -> RuleOutcomes:
    """Every rule on one camera; those named in `whole` in windows that are computed whole, too."""
    prefix = f"{clip.name}, {place.cut.frames}"
    chains: dict[str, list[StrideBlock]] = {}

    def blocks(masks: MaskPolicy) -> list[StrideBlock]:
        if repr(masks) not in chains:
            chains[repr(masks)] = blocks_of(clip, masks, place)
        return chains[repr(masks)]

    dense = replace(ONE_A_STRIDE, everything=True)
    variants = {name: (masks, default()) for name, masks in kinds.items()}
    variants |= {f"{name}, whole": (kinds[name], WHOLE) for name in whole}
    variants["full"] = (dense, WHOLE)
    out: RuleOutcomes = {}
    for name, (masks, setting) in variants.items():
        key = f"{prefix}, {masks!r}, {setting.name}"
        own = () if key in place.results else blocks(masks)
        answer = outcome(key, own, setting, place)
        if f"{key}, tower" not in place.results:
            place.results.add(f"{key}, tower", encoded_share(own))
        out[name] = replace(answer, tower=float(place.results.found[f"{key}, tower"]))
    key = f"{prefix}, behind"
    own = () if key in place.results else kept_behind(blocks(dense), blocks(ONE_A_STRIDE))
    out["behind"] = outcome(key, own, default(), place)
    return out


def truth(clip: Clip, place: Workplace) -> list[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """What is true of every window of a rendered camera, and where that is known, once."""
    assert clip.scene is not None
    key = f"{clip.name}, times {place.cut}"
    if key not in place.results:
        times = window_times(blocks_of(clip, ONE_A_STRIDE, place), place.cut)
        place.results.add(key, [window.tolist() for window in times])
    pairs = [
        answers(scenes.observe(clip.scene, torch.tensor(times)).truth) for times in place.results.found[key]
    ]
    yes, known = (torch.stack([pair[part][0, -1] for pair in pairs]).numpy() for part in (0, 1))
    return [(yes, known)]


def f1_of(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean F1 over questions of [..., questions, (hit, miss, false)]; those without a case are left out."""
    hit, miss, false = (counts[..., part] for part in range(3))
    total = 2 * hit + miss + false
    out: NDArray[np.float64] = np.nanmean(np.where(total > 0, 2 * hit / np.maximum(total, 1), np.nan), -1)
    return out


def scores(cameras: Sequence[Sequence[Answers]]) -> NDArray[np.float64]:
    """Hit, miss, false by camera and question."""
    counts = [[by_window(window_answers) for window_answers in camera] for camera in cameras]
    return np.array([[(c.hit, c.miss, c.false) for c in camera] for camera in counts], float)


def from_dense(cameras: Sequence[RuleOutcomes], name: str) -> NDArray[np.float64]:
    """Mean |difference of p(yes)| of product questions from full windows, by camera."""

    def distance(camera: RuleOutcomes) -> float:
        own, full = camera[name].answered, camera["full"].answered
        return over_period(np.abs(own.p - full.p)[:, PRODUCT_ROWS].mean(1), own.key)

    return np.array([distance(camera) for camera in cameras])


def costs(cameras: Sequence[RuleOutcomes], name: str) -> dict[str, float]:
    """Tokens, FLOPs of the language model, and those of a full-size tower, as shares of full windows."""

    def flops_of(windows: Answered) -> float:
        return over_period(windows.flops, windows.key)

    own = [camera[name] for camera in cameras]
    full = [camera["full"].answered.flops.mean() for camera in cameras]
    flops = [flops_of(rule.answered) / whole for rule, whole in zip(own, full, strict=True)]
    return {
        "tokens kept": round(float(np.mean([rule.kept for rule in own])), 4),
        "FLOPs of full": round(float(np.mean(flops)), 4),
        "tower's FLOPs": round(float(np.mean([rule.tower for rule in own])), 4),
    }


def comparison(
    cameras: Sequence[RuleOutcomes], truths: Sequence[Any] | None, against: str, rounds: int = 2000
) -> dict[str, dict[str, Any]]:
    """Every rule of one group: cost, F1 where the truth is known, distance from full windows; and what the
    rule `against` has more than it, paired by camera."""
    names = [name for name in cameras[0] if not name.endswith(", whole")]
    draws = np.random.default_rng(0).integers(0, len(cameras), (rounds, len(cameras)))
    tables: dict[str, NDArray[np.float64]] = {}
    if truths is not None:
        for name in names:
            verdicts = [judged(camera[name].answered.p, t) for camera, t in zip(cameras, truths, strict=True)]
            tables[name] = scores(verdicts)
    out: dict[str, dict[str, Any]] = {}
    for name in names:
        row: dict[str, Any] = {"cameras": len(cameras)} | costs(cameras, name)
        for kind, rows in ROWS.items() if tables else ():
            own, other = (tables[rule][:, rows] for rule in (name, against))
            row[kind] = round(float(f1_of(own.sum(0))), 3)
            less = f1_of(other[draws].sum(1)) - f1_of(own[draws].sum(1))
            row[f"{kind}: {against} less it"] = round(float(f1_of(other.sum(0)) - f1_of(own.sum(0))), 3)
            row[f"{kind}: 95 %"] = [round(float(edge), 3) for edge in np.nanquantile(less, (0.025, 0.975))]
        distance, base = from_dense(cameras, name), from_dense(cameras, against)
        row["from dense"] = round(float(distance.mean()), 4)
        row[f"from dense: {against} less it"] = round(float((base - distance).mean()), 4)
        row["from dense: 95 %"] = interval(base - distance)
        out[name] = row
    return out


def film_clips(first: int, count: int, place: Workplace) -> Iterator[Clip]:
    """Cameras and their samples."""
    for camera in films(first, count, place.folder):
        yield Clip(camera.name, read_clip(camera.path, place.tower.grid), camera.scene)


def real_clips(where: Path, place: Workplace) -> list[Clip]:
    """Real clips of fixed cameras that are long enough for the windows."""
    paths = real(where, place.tower, place.cut)
    return [Clip(path.stem, read_clip(path, place.tower.grid)) for path in paths]


def dp_of_reuse(cameras: Sequence[RuleOutcomes], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """|dp| of reuse from whole windows under the same masks, for rules that were computed both ways."""
    out = {}
    for name in names:
        if f"{name}, whole" in cameras[0]:
            pairs = [(camera[name].answered, camera[f"{name}, whole"].answered) for camera in cameras]
            distance = np.array([over_period(np.abs(a.p - b.p).mean(1), a.key) for a, b in pairs])
            out[name] = {"dp": round(float(distance.mean()), 5), "dp 95 %": interval(distance)}
    return out


def at_full_size(where: Path, kinds: Mapping[str, MaskPolicy]) -> dict[str, dict[str, float]]:
    """FLOPs saved with one question, by rule and level of motion: on the clips of `bench/motion.json`, at 448
    pixels and strides of 8 s."""
    levels = json.loads(MOTION.read_text())
    paths = {path.stem: path for path in motion.clips_of(where)}
    out: dict[str, dict[str, float]] = {name: {} for name in kinds}
    for level, clip in levels.items():
        if clip["clip"] not in paths:
            continue
        decoded = decode_segment(
            paths[clip["clip"]].read_bytes(), DecodeRequest(448, 448, limits=Limits(seconds=900))
        )
        samples = [
            Sample(pixels, corrupt=frame.info.corrupt)
            for pixels, frame in zip(decoded.pixels, decoded.frames, strict=True)
        ]
        for name, rule in kinds.items():
            shares = motion.repeated(motion.shares(samples, rule))
            out[name][f"{level}: kept"] = round(float(np.mean(shares)), 4)
            out[name][f"{level}: FLOPs saved"] = cost_at_full_size(shares, PRESETS[DEFAULT_PRESET]).saved()
    return out


def group_outcomes(
    name: str,
    clips: Sequence[Clip],
    kinds: Mapping[str, MaskPolicy],
    place: Workplace,
    *,
    whole: Sequence[str],
    against: str,
) -> tuple[list[RuleOutcomes], dict[str, dict[str, Any]]]:
    """Every rule on one group of cameras, and the table in which `against` is compared with the others."""
    bar = tqdm(clips, desc=name, disable=None)
    answers = [camera_outcomes(clip, kinds, place, whole) for clip in bar]
    truths = [truth(clip, place)[0] for clip in clips] if clips[0].scene is not None else None
    return answers, comparison(answers, truths, against)


@contextmanager
def workplace(keep: Path, cut: Cut, folder: Path | None = None, device: str = "cpu") -> Iterator[Workplace]:
    """A checkpoint (None: the tiny model that ships) in float32, on one thread of the host, and what it
    answered before, kept in the folder `keep`."""
    torch.set_num_threads(1)
    model = find_model(folder)
    results = Results(keep / f"answers-{folder_digest(model)[:12]}.jsonl")
    engine = load_engine(model, device, "float32")
    tower = load_tower(model, device=device, dtype="float32")
    try:
        yield Workplace(tower, engine, results, keep / "films", cut, 0.0, time.monotonic())
    finally:
        engine.close()


def print_tables(tables: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Every table with its title, a rule a line."""
    for title, rows in tables.items():
        print(f"\n{title}")
        for name, row in rows.items():
            print(f"  {name:20}" + "  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
