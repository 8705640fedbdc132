"""`python -m bench.masks`: which masks keep the fewest tokens for the same answers.

Clips are sampled at 2 FPS and pruned by every policy, with an anchor every 2 s and every 8 s. There are three
kinds of clips:

* real ones of fixed cameras, at the tiny model's input and at 448 pixels;
* rendered ones that nobody trained on;
* slow ones: a soft figure of 4 to 32 grey levels of contrast crosses a rendered room at 2 to 32 pixels a
  second (of 448), or appears within a second. Noise is added and the clip is encoded; the truth is the
  picture without noise.

Per policy, with 95 % intervals over clips:

* kept: share of tokens kept;
* stale: share of the changed patches that the model still sees as they were. Changed means 8 grey levels of
  the smoothed picture in any colour; in slow clips half of the figure's contrast. `stale_luma` is the same
  by 6 grey levels of luma;
* dp: mean difference of p(yes) to the answer with all tokens (dense), by the trained tiny model;
* f1: of the labelled questions.

`random` keeps as many tokens of every frame as another policy does, anywhere (the floor); `oracle` keeps as
many where the pixels changed most (the ceiling). `less default` is a policy's figure minus the default's on
the same clips. `--part colour` says what luma does not see: the share left stale of patches that changed by
8, 12, 16 and 24 levels in some colour, and in which. Every clip's result of the other parts is kept under
--results and is not measured again, so that the command can be stopped and continues. The last line is JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from bench.motion import ENOUGH, MOVING, SMALLEST, Both, clips_of, footage
from lookout.pruning import (
    Accumulation,
    Change,
    GatherMethod,
    NoiseThreshold,
    PatchGrid,
    PrunePolicy,
    Sample,
    luma,
    patch_difference,
    preset_policy,
    prune_block,
    spread,
)
from lookout.video.motion import Basis, Motion
from lookout.video.segments import CodecError, DecodeRequest, Limits
from lookout.video.segments.decoder import decode_segment
from watchbench import cameras, drawing, encode, films, model as vlm, scenes, sight
from watchbench.questions import BY_NAME, NAMES, PRODUCT, answers

Mask = npt.NDArray[np.bool_]
U8 = npt.NDArray[np.uint8]

CHANGED = 8.0  # grey levels, any colour
CHANGED_LUMA = 6.0  # grey levels
LEVELS = (8.0, 12.0, 16.0, 24.0)  # grey levels of --part colour
CONTRASTS = (4.0, 8.0, 16.0, 32.0)  # grey levels of the figure of a slow clip
SPEEDS = (0.0, 2.0, 8.0, 32.0)  # its pixels a second; 0: it appears within a second
SLOW_SECONDS, NOISE = 16.0, 1.8
STRIDES = (4, 16)  # samples: 2 s and 8 s at 2 FPS
WINDOW = 20  # samples
LONGEST = 64  # samples of a clip that are measured
RESAMPLES = 1000
DEFAULT = "luma, learnt"
POLICIES: dict[str, PrunePolicy] = {
    "codecsight": preset_policy("codecsight"),
    "vectors": PrunePolicy(
        change=Change.VECTORS, luma_tau=6.0, anchor_samples=None, accumulation=Accumulation.SINCE_ANCHOR
    ),
    "vectors, since-encoded": PrunePolicy(change=Change.VECTORS, luma_tau=6.0),
    "vectors propose, luma decides": PrunePolicy(change=Change.VECTORS_LUMA),
    "luma, 3": PrunePolicy(luma_tau=3.0),
    "luma, 4": PrunePolicy(luma_tau=4.0),
    "luma, 5": PrunePolicy(luma_tau=5.0),
    "luma, 6": PrunePolicy(luma_tau=6.0),
    "luma, learnt up to 9": PrunePolicy(learning=NoiseThreshold(3.0, 1.0, 2.0, 9.0)),
    "luma, learnt": PrunePolicy(luma_tau=None),
}
SIZED = ("luma, 4", "luma, 5", "luma, learnt")  # policies whose sizes the floor and the ceiling have
FLOOR, CEILING, DENSE = "random, as ", "oracle, as ", "dense"
RESULTS = 1  # raise when masks are made or judged in another way, so that clips are measured again


@dataclass(frozen=True)
class Film:
    """One clip as the prune stage sees it.

    samples: by gathering method, one per sampled frame; truth: of a question for a window [begin, end], None
    where that is not known; clean: what really is in view, uint8 [n, height, width, 3], None: the samples'
    pixels; level: grey levels by which a changed patch differs.
    """

    name: str
    kind: str
    samples: dict[GatherMethod, list[Sample]]
    times: npt.NDArray[np.float64]
    truth: Callable[[str, int, int], bool | None]
    ends: tuple[int, ...]
    clean: U8 | None = None
    level: float = CHANGED

    @cached_property
    def pixels(self) -> U8:
        """uint8 [n, height, width, 3]."""
        return np.stack([sample.pixels for sample in self.samples[GatherMethod.UNION]])

    @cached_property
    def luma(self) -> list[U8]:
        """Of what really is in view: uint8 [height, width] a sample."""
        return [luma(picture) for picture in (self.pixels if self.clean is None else self.clean)]


@dataclass
class Score:
    """What one policy did to one clip."""

    kept: float = 1.0
    stale: float = 0.0
    changed: int = 0
    stale_luma: float = 0.0
    apart: list[float] = field(default_factory=list)
    said: list[tuple[str, bool, bool]] = field(default_factory=list)  # question, answer, truth


Scores = dict[str, dict[str, Score]]  # by stride (samples) and policy


def decoded(
    path: Path, size: int, vectors: bool
) -> tuple[dict[GatherMethod, list[Sample]], npt.NDArray[np.float64], bool]:
    """(samples by gathering method, their times, whether the picture is too small); without `vectors` all
    samples depend on pixels. Errors: CodecError.
    """
    grid = grid_of(size)
    both = Both(grid.rows, grid.cols, grid.patch) if vectors else None
    request = DecodeRequest(size, size, gather=both, vectors=vectors, limits=Limits(seconds=900))
    result = decode_segment(path.read_bytes(), request)
    still = [Motion(Basis.LUMA)] * len(result.frames)
    samples = {
        method: [
            Sample(pixels, motion.basis, motion.v, intra=frame.info.picture.intra, corrupt=frame.info.corrupt)
            for pixels, motion, frame in zip(
                result.pixels, both.found[method] if both else still, result.frames, strict=True
            )
        ]
        for method in GatherMethod
    }
    times = np.array([frame.stream_us / 1e6 for frame in result.frames])
    return samples, times, min(result.facts.width, result.facts.height) < SMALLEST


def grid_of(size: int) -> PatchGrid:
    """Patches of 14 pixels in groups of 2x2, as InternVL has them."""
    return PatchGrid.merged(size // 14, size // 14, 14, 2)


def real_film(path: Path, size: int, vectors: bool = True) -> Film | None:
    """A clip of a fixed camera, with a truth where it has labels; None for one that cannot be judged."""
    labels = {clip.path: clip for clip in sight.CLIPS}
    try:
        samples, times, small = decoded(path, size, vectors)
    except CodecError as error:
        print(f"{path.name}: {error}", file=sys.stderr)
        return None
    if small or len(times) < 2:
        return None
    spans = labels[key].truth if (key := f"{path.parent.name}/{path.name}") in labels else {}

    def truth(name: str, begin: int, end: int) -> bool | None:
        return sight._truth(spans[name], times[begin], times[end]) if name in spans else None

    cut = {method: each[:LONGEST] for method, each in samples.items()}
    times = times[:LONGEST]
    return Film(path.stem, "real", cut, times, truth, tuple(sight._ends(len(times))))


def rendered_film(path: Path, scene: scenes.Scene, size: int) -> Film:
    """A camera nobody trained on, with its truth."""
    samples, times, _ = decoded(path, size, vectors=True)
    yes, known = answers(scenes.observe(scene, torch.tensor(times[:WINDOW]).float()).truth)
    table = {
        (name, end): bool(yes[0, end, at]) if known[0, end, at] else None
        for at, name in enumerate(NAMES)
        for end in range(yes.shape[1])
    }
    ends = tuple(end for end in sight.ENDS if end < min(len(times), WINDOW))
    cut = {method: each[:WINDOW] for method, each in samples.items()}
    return Film(path.stem, "rendered", cut, times[:WINDOW], lambda name, _, end: table[name, end], ends)


@dataclass(frozen=True)
class SlowFigure:
    """A soft ellipse over a rendered room.

    contrast: grey levels; speed: pixels of 448 a second, 0: it appears within a second; seed: of room and
    place.
    """

    contrast: float
    speed: float
    seed: int

    @property
    def name(self) -> str:
        """Of the file."""
        return f"slow-{self.contrast:g}-{speed_name(self.speed)}-{self.seed}"

    def room(self) -> npt.NDArray[np.float32]:
        """The empty room, float32 [448, 448, 3], 0..255, away from black and white."""
        scene = scenes.sample(1, SLOW_SECONDS, films.HELD_BACK + self.seed, grade=0.0)
        back = drawing.background(scene, cameras.SIZE)[0].clamp(48 / 255, 208 / 255)
        return np.asarray((back * 255).numpy(), np.float32)

    def picture(self, room: npt.NDArray[np.float32], second: float) -> npt.NDArray[np.float32]:
        """What is in view at a time, float32 as `room`."""
        draw = np.random.default_rng(self.seed)
        x, y = draw.uniform(60, 200), draw.uniform(140, 310)
        share = min(1.0, max(0.0, second - 4.5)) if self.speed == 0 else 1.0
        rows, cols = np.mgrid[: cameras.SIZE, : cameras.SIZE].astype(np.float32)
        off = np.hypot((cols - (x + self.speed * second) % (cameras.SIZE + 50)) / 25, (rows - y) / 60)
        shape = np.clip((1.04 - off) * 25, 0, 1)[..., None]
        return np.asarray(room + np.float32(self.contrast * share) * shape, np.float32)


def speed_name(speed: float) -> str:
    """Part of a clip's name."""
    return "appears" if speed == 0 else f"{speed:g}"


def slow_film(figure: SlowFigure, folder: Path, size: int) -> Film:
    """A figure that moves slowly or hardly stands out."""
    path, room = folder / f"{figure.name}.mp4", figure.room()
    if not path.is_file():
        draw = np.random.default_rng(figure.seed)
        rate = float(cameras.FPS)
        pictures = (
            figure.picture(room, n / rate) + draw.normal(0, NOISE, room.shape)
            for n in range(round(SLOW_SECONDS * rate))
        )
        how = replace(encode.varied(figure.seed), codec="h264", loss=0.0)
        encode.write((np.clip(p + 0.5, 0, 255).astype(np.uint8) for p in pictures), path, cameras.FPS, how)
    samples, times, _ = decoded(path, size, vectors=True)
    step = cameras.SIZE // size
    clean = [
        figure.picture(room, t).reshape(size, step, size, step, 3).mean(axis=(1, 3)) + 0.5 for t in times
    ]
    return Film(
        figure.name, "slow", samples, times, lambda *_: None, (), np.array(clean).astype(np.uint8),
        figure.contrast / 2,
    )  # fmt: skip


def difference(a: U8, b: U8, grid: PatchGrid) -> npt.NDArray[np.float32]:
    """The largest `patch_difference` of the three colours."""
    by_colour = [patch_difference(a[..., c], b[..., c], grid) for c in range(3)]
    return np.asarray(np.max(by_colour, axis=0), np.float32)


def masks_of(film: Film, policy: PrunePolicy, length: int, grid: PatchGrid) -> list[Mask]:
    """Groups kept of every frame."""
    masks: list[Mask] = []
    carry = None
    samples = film.samples[policy.rule]
    for start in range(0, len(samples), length):
        block, carry = prune_block(samples[start : start + length], grid, policy, carry)
        masks += [mask.keep for mask in block]
    return masks


def chosen_anyhow(masks: Sequence[Mask], seed: int) -> list[Mask]:
    """As many groups of every frame, anywhere."""
    draw = np.random.default_rng(seed)
    return [draw.permutation(mask.ravel()).reshape(mask.shape) for mask in masks]


def chosen_by_pixels(film: Film, masks: Sequence[Mask], grid: PatchGrid) -> list[Mask]:
    """As many groups of every frame, where it differs most from what the model sees."""
    seen, out = film.pixels[0].copy(), []
    for picture, mask in zip(film.pixels, masks, strict=True):
        gap = difference(picture, seen, grid)
        groups = gap.reshape(len(grid.row_taps), 2, len(grid.col_taps), 2).max(axis=(1, 3))
        keep = np.zeros(mask.size, np.bool_)
        keep[np.argsort(-groups.ravel(), kind="stable")[: int(mask.sum())]] = True
        out.append(keep.reshape(mask.shape))
        show(seen, picture, out[-1], grid)
    return out


def show(seen: U8, picture: U8, keep: Mask, grid: PatchGrid) -> Mask:
    """What the model sees after a frame, in place; the patches it got."""
    fresh = spread(keep, grid)
    area = np.repeat(np.repeat(fresh, grid.patch, axis=0), grid.patch, axis=1)
    seen[area] = picture[area]
    return fresh


def judged(film: Film, masks: Sequence[Mask], grid: PatchGrid) -> Score:
    """Tokens and staleness of a clip."""
    pictures = film.pixels if film.clean is None else film.clean
    seen, seen_luma = pictures[0].copy(), luma(pictures[0])
    changed = missed = bright = dark = 0
    for picture, grey, keep in zip(pictures, film.luma, masks, strict=True):
        gap = difference(picture, seen, grid) > film.level
        grey_gap = patch_difference(grey, seen_luma, grid) > CHANGED_LUMA
        fresh = show(seen, picture, keep, grid)
        show(seen_luma, grey, keep, grid)
        changed, missed = changed + int(gap.sum()), missed + int((gap & ~fresh).sum())
        bright, dark = bright + int(grey_gap.sum()), dark + int((grey_gap & ~fresh).sum())
    kept = float(np.mean([mask.mean() for mask in masks]))
    return Score(kept, missed / max(1, changed), changed, dark / max(1, bright))


@torch.no_grad()
def asked(model: object, film: Film, masks: Sequence[Mask] | None) -> dict[tuple[int, str], float]:
    """p(yes) by window end and question."""
    pixels = torch.from_numpy(film.pixels).permute(0, 3, 1, 2).float() / 255
    keep = None if masks is None else torch.from_numpy(np.stack([mask.ravel() for mask in masks]))
    tokens, out = vlm.see(model, pixels, keep), {}
    for end in film.ends:
        begin = begin_of(end)
        questions = [vlm.Asked(BY_NAME[name].text, end - begin) for name in PRODUCT]
        part = None if keep is None else keep[None, begin : end + 1]
        said = vlm.answer(model, tokens[None, begin : end + 1], questions, part).answers[0].softmax(-1)[:, 0]
        out.update({(end, name): float(value) for name, value in zip(PRODUCT, said, strict=True)})
    return out


def begin_of(end: int) -> int:
    """First sample of the window that ends with a sample."""
    return max(0, end // sight.STRIDE * sight.STRIDE + sight.STRIDE - WINDOW)


def interval(values: Sequence[float], weights: Sequence[float] | None = None) -> dict[str, float]:
    """Mean over clips and its 95 % interval, by resampling clips."""
    draw = np.random.default_rng(0)
    data = np.asarray(values, np.float64)
    weight = np.ones_like(data) if weights is None else np.asarray(weights, np.float64)
    pick = draw.integers(0, len(data), (RESAMPLES, len(data)))
    total = weight[pick].sum(axis=1)
    means = (data * weight)[pick].sum(axis=1) / np.maximum(total, 1e-12)
    low, high = np.quantile(means, [0.025, 0.975])
    mean = float((data * weight).sum() / max(1e-12, weight.sum()))
    return {"mean": round(mean, 4), "low": round(float(low), 4), "high": round(float(high), 4)}


def f1(scores: Sequence[Score]) -> dict[str, float | None]:
    """F1 by question."""
    tally = sight.Score()
    for score in scores:
        for name, said, true in score.said:
            tally.add(name, said, true)
    return tally.f1()


def measured(film: Film, size: int, model: object | None) -> Scores:
    """Scores of every policy by stride, in samples."""
    grid = grid_of(size)
    asks = model is not None and bool(film.ends)
    dense = asked(model, film, None) if asks else {}
    out: Scores = {}
    for length in STRIDES:
        made = {name: masks_of(film, policy, length, grid) for name, policy in POLICIES.items()}
        for name in SIZED if asks else SIZED[-1:]:
            made[FLOOR + name] = chosen_anyhow(made[name], len(film.times))
            made[CEILING + name] = chosen_by_pixels(film, made[name], grid)
        made[DENSE] = [np.ones_like(mask) for mask in made[DEFAULT]]
        for name, masks in made.items():
            score = judged(film, masks, grid)
            told = dense if name == DENSE or not asks else asked(model, film, masks)
            for (end, question), p in told.items():
                score.apart.append(abs(p - dense[end, question]))
                true = film.truth(question, begin_of(end), end)
                if true is not None:
                    score.said.append((question, p > 0.5, true))
            out.setdefault(str(length), {})[name] = score
    return out


class Kept:
    """Results of clips, under the policies that were measured."""

    def __init__(self, folder: Path) -> None:
        told = repr((RESULTS, cameras.LOOK, POLICIES, SIZED)).encode()
        digest = hashlib.sha256(told).hexdigest()[:12]
        self.folder = folder / digest
        self.folder.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> Scores | None:
        """The scores of a clip; empty for one that cannot be judged, None for one not yet measured."""
        path = self.folder / f"{name}.json"
        if not path.is_file():
            return None
        told = json.loads(path.read_text())
        return {
            length: {
                policy: Score(**{**score, "said": [tuple(one) for one in score["said"]]})
                for policy, score in each.items()
            }
            for length, each in told.items()
        }

    def write(self, name: str, scores: Scores) -> None:
        """Keep the scores of a clip."""
        told = {
            length: {policy: asdict(score) for policy, score in each.items()}
            for length, each in scores.items()
        }
        part = self.folder / f".{name}.part"
        part.write_text(json.dumps(told))
        part.replace(self.folder / f"{name}.json")


def scores_of(
    title: str, clips: Sequence[tuple[str, Callable[[], Film | None]]], size: int, model: object | None,
    kept: Kept,
) -> list[tuple[str, Scores]]:  # fmt: skip
    """Every clip's name and scores; what was measured before is read."""
    out = []
    for name, make in tqdm(clips, desc=title, unit="clip", disable=None):
        scores = kept.read(f"{name}-{size}")
        if scores is None:
            film = make()
            scores = {} if film is None else measured(film, size, model)
            kept.write(f"{name}-{size}", scores)
        if scores:
            out.append((name, scores))
    return out


def report(title: str, clips: Sequence[Scores]) -> dict[str, object]:
    """Print a table per stride and return what the last line says."""
    out: dict[str, object] = {}
    for length in map(str, STRIDES):
        print(f"\n{title}, {len(clips)} clips, an anchor every {int(length) / 2:g} s")
        print(f"{'policy':30}{'kept':>21}{'stale':>21}{'stale, luma':>12}{'dp':>21}  F1")
        rows: dict[str, dict[str, Any]] = {}
        base = [scores[length][DEFAULT] for scores in clips]
        for name in clips[0][length]:
            each = [scores[length][name] for scores in clips]
            row = row_of(each)
            row["less_default"] = {
                key: interval([read(a) - read(b) for a, b in zip(each, base, strict=True) if has(a)] or [0.0])
                for key, (read, has) in FIGURES.items()
            }
            rows[name] = row
            cells = [_text(row.get(key)) for key in ("kept", "stale", "stale_luma", "dp")]
            cells[2] = cells[2].split(" ")[0]
            scored = " ".join(f"{k} {v:.2f}" for k, v in (row.get("f1") or {}).items() if v is not None)
            print(f"{name:30}{cells[0]:>21}{cells[1]:>21}{cells[2]:>12}{cells[3]:>21}  {scored}", flush=True)
        print(f"{'less default':30}{'kept':>24}{'stale':>24}{'dp':>24}")
        for name, row in rows.items():
            gap = row["less_default"]
            print(f"{name:30}" + "".join(f"{_text(gap[key]):>24}" for key in ("kept", "stale", "dp")))
        out[length] = rows
    return out


FIGURES: dict[str, tuple[Callable[[Score], float], Callable[[Score], bool]]] = {
    "kept": (lambda score: score.kept, lambda _: True),
    "stale": (lambda score: score.stale, lambda score: score.changed > 0),
    "stale_luma": (lambda score: score.stale_luma, lambda score: score.changed > 0),
    "dp": (lambda score: float(np.mean(score.apart or [0.0])), lambda score: bool(score.apart)),
}


def row_of(each: Sequence[Score]) -> dict[str, Any]:
    """The figures of one policy over its clips."""
    row: dict[str, Any] = {
        key: interval(found)
        for key, (read, has) in FIGURES.items()
        if (found := [read(score) for score in each if has(score)])
    }
    if any(score.said for score in each):
        row["f1"] = f1(each)
    return row


def report_slow(clips: Sequence[tuple[str, Scores]], size: int) -> dict[str, object]:
    """Print what each policy leaves stale of slow movement, by contrast and by speed."""
    out: dict[str, object] = {}
    groups = {f"{c:g} levels": [f"slow-{c:g}-"] for c in CONTRASTS}
    groups |= {
        ("appears" if v == 0 else f"{v:g} px/s"): [f"slow-{c:g}-{speed_name(v)}-" for c in CONTRASTS]
        for v in SPEEDS
    }
    for length in map(str, STRIDES):
        print(f"\nslow, {size} pixels: share left stale, an anchor every {int(length) / 2:g} s")
        print(
            f"{'policy':30}{'kept':>7}{'all':>21}{'less default':>24}"
            + "".join(f"{name:>11}" for name in groups)
        )
        rows: dict[str, object] = {}
        for policy in clips[0][1][length]:
            mine = [(name, scores[length][policy]) for name, scores in clips]
            kept, stale = interval([s.kept for _, s in mine]), interval([s.stale for _, s in mine])
            by = {
                title: round(
                    float(np.mean([s.stale for name, s in mine if name.startswith(tuple(heads))])), 4
                )
                for title, heads in groups.items()
            }
            less = interval(
                [
                    s.stale - scores[length][DEFAULT].stale
                    for (_, s), (_, scores) in zip(mine, clips, strict=True)
                ]
            )
            rows[policy] = {"kept": kept, "stale": stale, "less_default": less, "by": by}
            print(
                f"{policy:30}{kept['mean']:>7.3f}{_text(stale):>21}{_text(less):>24}"
                + "".join(f"{value:>11.3f}" for value in by.values()),
                flush=True,
            )
        out[length] = rows
    return out


def unseen(film: Film, policy: PrunePolicy, length: int, grid: PatchGrid) -> npt.NDArray[np.int64]:
    """What a policy leaves stale by how much it changed: int64 [levels, 4], patches that changed by more than
    each of LEVELS in some colour, and those of them left stale because of red, green and blue.
    """
    seen, out = film.pixels[0].copy(), np.zeros((len(LEVELS), 4), np.int64)
    for picture, keep in zip(film.pixels, masks_of(film, policy, length, grid), strict=True):
        gaps = np.stack([patch_difference(picture[..., c], seen[..., c], grid) for c in range(3)])
        gap, most = gaps.max(axis=0), gaps.argmax(axis=0)
        fresh = show(seen, picture, keep, grid)
        for row, level in zip(out, LEVELS, strict=True):
            row[0] += (gap > level).sum()
            row[1:] += np.bincount(most[(gap > level) & ~fresh], minlength=3)
    return out


def report_colour(films: Sequence[Callable[[], Film | None]], size: int) -> dict[str, object]:
    """Print what policies of luma leave stale of changes in colour, small and large ones."""
    names, length, grid = ("luma, 4", DEFAULT), STRIDES[-1], grid_of(size)
    found: dict[str, list[npt.NDArray[np.int64]]] = {name: [] for name in names}
    for make in tqdm(films, desc=f"colour at {size}", unit="clip", disable=None):
        film = make()
        for name in names if film is not None else ():
            assert film is not None
            found[name].append(unseen(film, POLICIES[name], length, grid))
    print(f"\ncolour, {size} pixels, {len(found[DEFAULT])} clips, an anchor every {length / 2:g} s")
    print(f"{'policy':16}{'levels':>8}{'stale':>24}   of these red, green, blue")
    out: dict[str, object] = {}
    for name, clips in found.items():
        rows: dict[str, object] = {}
        for at, level in enumerate(LEVELS):
            shares = [clip[at, 1:].sum() / clip[at, 0] for clip in clips if clip[at, 0] >= ENOUGH]
            by = np.sum([clip[at, 1:] for clip in clips], axis=0)
            rows[f"{level:g}"] = {"stale": interval(shares), "clips": len(shares), "colours": by.tolist()}
            print(f"{name:16}{level:8g}{_text(interval(shares)):>24}   {by.tolist()}", flush=True)
        out[name] = rows
    return out


def _text(value: object) -> str:
    if not isinstance(value, dict):
        return "-"
    return f"{value['mean']:.3f} ({value['low']:.3f}-{value['high']:.3f})"


PARTS = ("slow", "rendered", "real", "colour")


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS, action="append", help="kinds of clips; default: all")
    parser.add_argument("--rendered", type=int, default=24, help="rendered cameras")
    parser.add_argument("--rooms", type=int, default=2, help="slow clips of every contrast and speed")
    parser.add_argument("--real", type=int, help="at most so many real clips; default: all")
    parser.add_argument(
        "--size", type=int, default=448, help="model input for kept and stale beside the tiny model's"
    )
    parser.add_argument("--folder", type=Path, default=Path("out/sight"), help="keeps rendered clips")
    parser.add_argument("--results", type=Path, default=Path("out/masks"), help="keeps each clip's result")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    parts, kept = options.part or PARTS, Kept(options.results)
    options.folder.mkdir(parents=True, exist_ok=True)
    model = vlm.load(vlm.weights("tolerant"))
    line: dict[str, object] = {"bench": "masks", "strides": list(STRIDES), "default": DEFAULT}
    if "slow" in parts:
        figures = [SlowFigure(c, v, seed) for seed in range(options.rooms) for c in CONTRASTS for v in SPEEDS]
        for size in (options.size, vlm.SIZE):
            slow = [(f.name, lambda f=f, s=size: slow_film(f, options.folder, s)) for f in figures]
            found = scores_of(f"slow at {size}", slow, size, None, kept)
            line[f"slow_{size}"] = {"clips": len(found), **report_slow(found, size)}
    if "rendered" in parts:
        clips = films.rendered_clips(options.rendered, options.folder, films.HELD_BACK)
        made = [
            (p.stem, lambda p=p, s=s: rendered_film(p, s, vlm.SIZE))
            for p, s in tqdm(clips, total=options.rendered, desc="render", disable=None)
        ]
        found = scores_of(f"rendered at {vlm.SIZE}", made, vlm.SIZE, model, kept)
        line["rendered"] = {
            "clips": len(found),
            **report(f"rendered, {vlm.SIZE} pixels", [s for _, s in found]),
        }
    where = footage()
    if where is None:
        print("\nreal clips: left out, there is no footage (set LOOKOUT_FOOTAGE)")
    else:
        paths = [p for p in clips_of(where) if p.stem not in MOVING][: options.real]
        for size in (vlm.SIZE, options.size) if "real" in parts else ():
            real = [(p.stem, lambda p=p, s=size: real_film(p, s)) for p in paths]
            found = scores_of(f"real at {size}", real, size, model if size == vlm.SIZE else None, kept)
            line[f"real_{size}"] = {
                "clips": len(found),
                **report(f"real, {size} pixels", [scores for _, scores in found]),
            }
        if "colour" in parts:
            looks = [lambda p=p: real_film(p, options.size, vectors=False) for p in paths]
            line[f"colour_{options.size}"] = report_colour(looks, options.size)
    print(json.dumps(line))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
