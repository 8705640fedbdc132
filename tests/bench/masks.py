"""`python -m tests.bench.masks`: which masks keep the fewest tokens for the same answers.

Real clips of fixed cameras and rendered ones nobody trained on are sampled at 2 FPS and pruned by every
policy, with an anchor every 2 s and every 8 s. The trained tiny model answers the product's questions on
every window with all tokens (dense) and with those of each policy. Per policy, 95 % intervals over clips:

* kept: share of tokens kept; stale: share of the patches that changed (any colour, 8 grey levels of the
  smoothed picture, against what the model would see) that it still sees as they were;
* dp: mean difference of p(yes) to the dense answer; f1: of the labelled questions.

`random` drops as many tokens of every frame as the default does, anywhere (the floor); `oracle` keeps as many
where the pixels changed most (the ceiling). The last line is one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from tqdm import tqdm

from lookout.codec import CodecError, DecodeRequest, Limits
from lookout.codec.decoder import decode_segment
from lookout.pruning import (
    Accumulation,
    Change,
    GatherMethod,
    NoiseThreshold,
    PatchGrid,
    PrunePolicy,
    Sample,
    patch_difference,
    preset_policy,
    prune_block,
    spread,
)
from tests.bench.motion import MOVING, SMALLEST, Both, clips_of, footage
from watchbench import model as vlm
from watchbench import scenes, sight
from watchbench.questions import PRODUCT, answers

Mask = npt.NDArray[np.bool_]
U8 = npt.NDArray[np.uint8]

CHANGED = 8.0  # grey levels, any colour
STRIDES = (4, 16)  # samples: 2 s and 8 s at 2 FPS
WINDOW = 20  # samples
LONGEST = 64  # samples of a clip that are measured
RESAMPLES = 1000
DEFAULT = "luma, learnt"
POLICIES: dict[str, PrunePolicy] = {
    "codecsight": preset_policy("codecsight"),
    "vectors": PrunePolicy(change=Change.VECTORS, luma_tau=6.0, accumulation=Accumulation.SINCE_ANCHOR),
    "vectors, since-encoded": PrunePolicy(change=Change.VECTORS, luma_tau=6.0),
    "vectors propose, luma decides": PrunePolicy(change=Change.VECTORS_LUMA),
    "luma, 4": PrunePolicy(luma_tau=4.0),
    "luma, 6": PrunePolicy(luma_tau=6.0),
    "luma, learnt up to 9": PrunePolicy(learning=NoiseThreshold(3.0, 1.0, 2.0, 9.0)),
    DEFAULT: PrunePolicy(),
}
FLOOR, CEILING, DENSE = "random", "oracle", "dense"


@dataclass(frozen=True)
class Film:
    """One clip as the prune stage sees it.

    samples: by gathering method, one per sampled frame; truth: of a question for a window [begin, end], None
    where that is not known.
    """

    name: str
    kind: str
    samples: dict[GatherMethod, list[Sample]]
    times: npt.NDArray[np.float64]
    truth: Callable[[str, int, int], bool | None]
    ends: tuple[int, ...]

    @property
    def pixels(self) -> U8:
        """uint8 [n, height, width, 3]."""
        return np.stack([sample.pixels for sample in self.samples[GatherMethod.UNION]])


@dataclass
class Score:
    """What one policy did to one clip."""

    kept: float = 1.0
    stale: float = 0.0
    changed: int = 0
    apart: list[float] = field(default_factory=list)
    said: list[tuple[str, bool, bool]] = field(default_factory=list)  # question, answer, truth


def decoded(path: Path, size: int) -> tuple[dict[GatherMethod, list[Sample]], npt.NDArray[np.float64], bool]:
    """(samples by gathering method, their times, whether the picture is too small). Errors: CodecError."""
    grid = grid_of(size)
    both = Both(grid.rows, grid.cols, grid.patch)
    result = decode_segment(
        path.read_bytes(), DecodeRequest(size, size, gather=both, limits=Limits(seconds=900))
    )
    samples = {
        method: [
            Sample(pixels, motion.basis, motion.v, intra=frame.info.picture.intra, corrupt=frame.info.corrupt)
            for pixels, motion, frame in zip(result.pixels, both.motions[method], result.frames, strict=True)
        ]
        for method in GatherMethod
    }
    times = np.array([frame.stream_us / 1e6 for frame in result.frames])
    return samples, times, min(result.facts.width, result.facts.height) < SMALLEST


def grid_of(size: int) -> PatchGrid:
    """Patches of 14 pixels in groups of 2x2, as InternVL has them."""
    return PatchGrid.merged(size // 14, size // 14, 14, 2)


def real_films(where: Path, size: int, count: int | None) -> Iterator[Film]:
    """Clips of fixed cameras; those with labels have a truth."""
    labels = {clip.path: clip for clip in sight.CLIPS}
    for path in tqdm(clips_of(where)[:count], desc=f"real clips at {size}", disable=None):
        if path.stem in MOVING:
            continue
        try:
            samples, times, small = decoded(path, size)
        except CodecError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            continue
        if small or len(times) < 2:
            continue
        spans = labels[key].truth if (key := f"{path.parent.name}/{path.name}") in labels else {}

        def truth(
            name: str,
            begin: int,
            end: int,
            spans: dict[str, sight.Spans] = spans,
            times: npt.NDArray[np.float64] = times,
        ) -> bool | None:
            return sight._truth(spans[name], times[begin], times[end]) if name in spans else None

        times = times[:LONGEST]
        cut = {method: each[:LONGEST] for method, each in samples.items()}
        yield Film(path.stem, "real", cut, times, truth, tuple(sight._ends(len(times))))


def rendered_films(folder: Path, count: int, size: int) -> Iterator[Film]:
    """Unseen rendered cameras with their truth."""
    films = sight.rendered_clips(count, folder, sight.HELD_BACK)
    for path, scene in tqdm(films, total=count, desc=f"rendered clips at {size}", disable=None):
        samples, times, _ = decoded(path, size)
        yes, known = answers(scenes.observe(scene, torch.tensor(times[:WINDOW]).float()).truth)
        asked = {name: at for at, name in enumerate(sight.NAMES)}

        table = {
            (name, end): bool(yes[0, end, at]) if known[0, end, at] else None
            for name, at in asked.items()
            for end in range(yes.shape[1])
        }

        def truth(
            name: str, begin: int, end: int, table: dict[tuple[str, int], bool | None] = table
        ) -> bool | None:
            del begin
            return table[name, end]

        ends = tuple(end for end in sight.ENDS if end < min(len(times), WINDOW))
        cut = {method: each[:WINDOW] for method, each in samples.items()}
        yield Film(path.stem, "rendered", cut, times[:WINDOW], truth, ends)


def difference(a: U8, b: U8, grid: PatchGrid) -> npt.NDArray[np.float32]:
    """The largest `patch_difference` of the three colours."""
    return np.max([patch_difference(a[..., c], b[..., c], grid) for c in range(3)], axis=0)


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
    seen = film.pixels[0].copy()
    changed = missed = 0
    for picture, keep in zip(film.pixels, masks, strict=True):
        gap = difference(picture, seen, grid) > CHANGED
        fresh = show(seen, picture, keep, grid)
        changed, missed = changed + int(gap.sum()), missed + int((gap & ~fresh).sum())
    return Score(float(np.mean([mask.mean() for mask in masks])), missed / max(1, changed), changed)


def asked(model: object, film: Film, masks: Sequence[Mask] | None) -> dict[tuple[int, str], float]:
    """p(yes) by window end and question."""
    pixels = torch.from_numpy(film.pixels).permute(0, 3, 1, 2).float() / 255
    keep = None if masks is None else torch.from_numpy(np.stack([mask.ravel() for mask in masks]))
    out = {}
    for end in film.ends:
        begin = begin_of(end)
        part = None if keep is None else keep[begin : end + 1]
        p = sight.ask(model, pixels[begin : end + 1], PRODUCT, (end - begin,), part)[0]
        out.update({(end, name): float(value) for name, value in zip(PRODUCT, p, strict=True)})
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


def measure(films: Sequence[Film], size: int, model: object | None) -> dict[str, dict[str, list[Score]]]:
    """Scores of every policy, by stride (samples) and policy, one per clip."""
    grid = grid_of(size)
    out: dict[str, dict[str, list[Score]]] = {}
    for film in tqdm(films, desc=f"policies at {size}", disable=None):
        dense = asked(model, film, None) if model is not None else {}
        whole = [np.ones((len(grid.row_taps), len(grid.col_taps)), np.bool_)] * len(film.times)
        for length in STRIDES:
            made = {name: masks_of(film, policy, length, grid) for name, policy in POLICIES.items()}
            made[FLOOR] = chosen_anyhow(made[DEFAULT], len(film.times))
            made[CEILING] = chosen_by_pixels(film, made[DEFAULT], grid)
            made[DENSE] = whole
            for name, masks in made.items():
                score = judged(film, masks, grid)
                told = dense if name == DENSE or model is None else asked(model, film, masks)
                for (end, question), p in told.items():
                    score.apart.append(abs(p - dense[end, question]))
                    true = film.truth(question, begin_of(end), end)
                    if true is not None:
                        score.said.append((question, p > 0.5, true))
                out.setdefault(str(length), {}).setdefault(name, []).append(score)
    return out


def report(title: str, scores: dict[str, dict[str, list[Score]]]) -> dict[str, object]:
    """Print a table per stride and return what the last line says."""
    out: dict[str, object] = {}
    for length, policies in scores.items():
        print(f"\n{title}, an anchor every {int(length) / 2:g} s")
        print(f"{'policy':32}{'kept':>22}{'stale':>22}{'dp':>22}  F1")
        rows: dict[str, object] = {}
        for name, each in policies.items():
            row: dict[str, object] = {
                "kept": interval([score.kept for score in each]),
                "stale": interval([score.stale for score in each if score.changed] or [0.0]),
            }
            told = [score for score in each if score.apart]
            if told:
                row["dp"] = interval(
                    [float(np.mean(score.apart)) for score in told], [len(score.apart) for score in told]
                )
                row["f1"] = f1(told)
            rows[name] = row
            cells = "".join(f"{_text(row.get(key)):>22}" for key in ("kept", "stale", "dp"))
            scored = " ".join(f"{k} {v:.2f}" for k, v in (row.get("f1") or {}).items() if v is not None)  # type: ignore[attr-defined]
            print(f"{name:32}{cells}  {scored}", flush=True)
        out[length] = rows
    return out


def _text(value: object) -> str:
    if not isinstance(value, dict):
        return "-"
    return f"{value['mean']:.3f} ({value['low']:.3f}-{value['high']:.3f})"


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rendered", type=int, default=24, help="rendered cameras")
    parser.add_argument("--real", type=int, help="at most so many real clips; default: all")
    parser.add_argument(
        "--size", type=int, action="append", help="model inputs for kept and stale; default 448"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("out/sight"), help="where rendered clips are kept"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    where = footage()
    model = vlm.load(vlm.weights("tolerant"))
    options.folder.mkdir(parents=True, exist_ok=True)
    films = list(rendered_films(options.folder, options.rendered, vlm.SIZE))
    line: dict[str, object] = {"bench": "masks", "rendered_clips": len(films)}
    out = {"rendered": report(f"rendered, {vlm.SIZE} pixels", measure(films, vlm.SIZE, model))}
    if where is None:
        print("\nreal clips: left out, there is no footage (set LOOKOUT_FOOTAGE)")
    else:
        films = list(real_films(where, vlm.SIZE, options.real))
        line["real_clips"] = len(films)
        out["real"] = report(f"real, {vlm.SIZE} pixels", measure(films, vlm.SIZE, model))
        for size in options.size or [448]:
            films = list(real_films(where, size, options.real))
            out[f"real_{size}"] = report(f"real, {size} pixels", measure(films, size, None))
    print(json.dumps({**line, "strides": list(STRIDES), **out}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
