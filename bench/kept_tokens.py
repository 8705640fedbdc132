"""Which tokens and which text bring a long window near its dense answer at equal tokens: `bench.kept_tokens`.

Rendered cameras that the trained tiny model never saw, and the real clips that are long enough, in single
windows, all computed whole: nothing here is what reuse loses. Every variant has at most the tokens of the
default masks in the same window, and differs from a neighbour in one thing:

- `ours`: the default masks, before the tower. `behind the tower`: the same tokens, cut out of the dense ones.
- `frames`: whole frames, evenly (`bench.peers_engine`). It numbers the frames that are left from one on.
- `frames, every label`: the same tokens, and the dropped frames keep their text.
- `frames, own numbers`: the same tokens, each frame with the number that it has in the dense window.
- `ours, labels of kept frames`: frames without a token have no text, and the others are numbered from one on.
  `ours, labels of blocks`: one text for a stride. `ours, every second frame`: labels of kept frames, and what
  two neighbours keep stands in the first of them, so that there is less text for as much of the picture.
- `period N`: a whole frame every N samples, and the patches that differ most from what was last kept of them,
  from the threshold on that spends the rest of the tokens. `ours` has N = 16 (an anchor a stride).
- `busy frames`: the whole frames in which our masks keep most.
- `random`: as many tokens, anywhere.

`dp`: mean |p(yes) - p(yes) of the dense window| over the product's questions, by camera, with 95 % over
cameras; `over_ours` is the difference to `ours` in the same windows. It says what costs how much: no setting
was chosen on these cameras. Answers are kept in --keep. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from tqdm import tqdm

from bench.peers_engine import CUTS, KEEP_ALL, Side, encoded, thinned
from bench.results import Results
from bench.windows_fidelity import Cut, interval, real as real_clips
from lookout.models import DEMO_QUESTIONS, find_model
from lookout.models.digest import folder_digest
from lookout.models.engines import Question, WindowRequest
from lookout.models.vision import Tower
from lookout.models.windows import (
    DEFAULT_PRESET,
    PRESETS,
    EncodedFrame,
    LabelPolicy,
    Planner,
    Policy,
    StrideBlock,
    WindowPlan,
)
from lookout.models.windows.planner import with_digest
from lookout.pruning import PrunePolicy
from lookout.pruning.luma import luma, patch_difference
from lookout.streams import StrideFrame
from tests.conftest import find_footage
from watchbench.films import HELD_BACK, rendered_clips

QUESTIONS: Final = [Question(name, text) for name, text in DEMO_QUESTIONS.items()]
PERIODS: Final = {"8": (2,), "80": (5, 8, 16)}  #: samples from one whole frame to the next
Window = list[StrideBlock]


@dataclass(frozen=True, slots=True)
class Rows:
    """A window of a variant, which of its frames have text, and their numbers where they are not counted."""

    window: Window
    labels: LabelPolicy = LabelPolicy.FRAME
    numbers: tuple[int, ...] = ()


def frames_of(window: Sequence[StrideBlock]) -> list[EncodedFrame]:
    """All frames of a window, oldest first."""
    return [frame for block in window for frame in block.frames]


def cut_to(window: Sequence[StrideBlock], keeps: Sequence[np.ndarray]) -> Window:
    """A dense window with the tokens of `keeps` alone: bool [group rows, group cols] of every frame."""
    left = iter(keeps)
    return [
        replace(block, frames=tuple(kept(frame, next(left)) for frame in block.frames)) for block in window
    ]


def kept(frame: EncodedFrame, keep: np.ndarray) -> EncodedFrame:
    """A whole frame with some of its tokens."""
    rows = torch.from_numpy(np.flatnonzero(keep))
    return replace(frame, keep=keep, tokens=frame.tokens.index_select(0, rows))


def whole_frames(count: int, chosen: Sequence[int], shape: tuple[int, ...]) -> list[np.ndarray]:
    """Masks of `count` frames of which the chosen ones are whole."""
    return [np.full(shape, number in set(chosen)) for number in range(count)]


def by_change(frames: Sequence[StrideFrame], tower: Tower, period: int, tokens: int) -> list[np.ndarray]:
    """A whole frame every `period` samples, and of the others what differs most from what was last kept.

    The threshold is the lowest that spends no more than `tokens`.
    """
    pictures = [luma(frame.sample.pixels) for frame in frames]
    low, high = 0.0, 256.0
    best: list[np.ndarray] = []
    for _ in range(12):
        tau = (low + high) / 2
        masks = _changed(pictures, tower, period, tau)
        spent = sum(int(mask.sum()) for mask in masks)
        low, high = (low, tau) if spent <= tokens else (tau, high)
        best = masks if spent <= tokens else best
    return best


def _changed(pictures: Sequence[np.ndarray], tower: Tower, period: int, tau: float) -> list[np.ndarray]:
    grid = tower.grid
    shape = len(grid.row_taps), len(grid.col_taps)
    rows, cols = grid.rows // shape[0], grid.cols // shape[1]
    # What was last kept of every place, in pixels: places of a mask are groups of patches.
    last = pictures[0].copy()
    out = []
    for number, picture in enumerate(pictures):
        if number % period == 0:
            keep = np.ones(shape, np.bool_)
        else:
            apart = patch_difference(picture, last, grid).reshape(shape[0], rows, shape[1], cols)
            keep = apart.max(axis=(1, 3)) > tau
        size = grid.patch * rows, grid.patch * cols
        pixels = np.kron(keep, np.ones(size, np.bool_))
        last[: pixels.shape[0], : pixels.shape[1]][pixels] = picture[: pixels.shape[0], : pixels.shape[1]][
            pixels
        ]
        out.append(keep)
    return out


class Camera:
    """One window of a camera in every variant."""

    def __init__(self, frames: Sequence[Sequence[StrideFrame]], step_us: int, side: Side, cut: str) -> None:
        self._side, self._cut = side, cut
        self._frames = [frame for stride in frames for frame in stride]
        self.dense = encoded(side.tower, frames, KEEP_ALL, step_us).blocks
        self.ours = encoded(side.tower, frames, PrunePolicy(), step_us).blocks

    def variants(self) -> Iterator[tuple[str, Callable[[], Rows]]]:
        """By name, and how each is made."""
        masks = [frame.keep for frame in frames_of(self.ours)]
        tokens, total = sum(int(mask.sum()) for mask in masks), sum(mask.size for mask in masks)
        shape, count = masks[0].shape, len(masks)
        chosen = np.linspace(0, count - 1, max(1, round(tokens / total * count))).round().astype(int).tolist()
        even = whole_frames(count, chosen, shape)
        busy = np.argsort([-int(mask.sum()) for mask in masks], kind="stable")[: len(chosen)].tolist()
        draw = np.random.default_rng(0)

        def anywhere() -> list[np.ndarray]:
            keep = np.zeros(total, np.bool_)
            keep[draw.permutation(total)[:tokens]] = True
            return list(keep.reshape(count, *shape))

        yield "dense", lambda: Rows(self.dense)
        yield "ours", lambda: Rows(self.ours)
        yield "behind the tower", lambda: Rows(cut_to(self.dense, masks))
        yield "ours, labels of kept frames", lambda: Rows(self.ours, LabelPolicy.KEPT)
        yield "ours, labels of blocks", lambda: Rows(self.ours, LabelPolicy.BLOCK)
        yield "ours, every second frame", lambda: Rows(self._halved(masks), LabelPolicy.KEPT)
        yield "frames", lambda: Rows(thinned(self.dense, tokens / total))
        yield "frames, every label", lambda: Rows(cut_to(self.dense, even))
        yield (
            "frames, own numbers",
            lambda: Rows(cut_to(self.dense, even), LabelPolicy.KEPT, tuple(number + 1 for number in chosen)),
        )
        yield "busy frames", lambda: Rows(cut_to(self.dense, whole_frames(count, busy, shape)))
        yield "random", lambda: Rows(cut_to(self.dense, anywhere()))
        for period in PERIODS[self._cut]:
            keeps = by_change(self._frames, self._side.tower, period, tokens)
            if keeps:
                yield f"period {period}", lambda keeps=keeps: Rows(cut_to(self.dense, keeps))
                yield (
                    f"period {period}, labels of kept frames",
                    lambda keeps=keeps: Rows(cut_to(self.dense, keeps), LabelPolicy.KEPT),
                )

    def _halved(self, masks: Sequence[np.ndarray]) -> Window:
        """What our masks keep of two neighbours, in the first of them, and nothing in the second."""
        nothing = np.zeros_like(masks[0])
        pairs = zip(masks[::2], masks[1::2], strict=True)
        return cut_to(self.dense, [keep for one, other in pairs for keep in (one | other, nothing)])

    def answer(self, rows: Rows) -> list[float]:
        """p(yes) of every question over a window computed whole."""
        blocks, samples = CUTS[self._cut]
        engine = self._side.engine
        settings = replace(
            PRESETS[DEFAULT_PRESET],
            blocks=blocks,
            samples=samples,
            policy=Policy.PRUNE_ONLY,
            labels=rows.labels,
        )
        planner = Planner(engine.layout, settings)
        plan = planner.plan(rows.window, key=True)
        if rows.numbers:
            plan = numbered(planner, plan, rows.numbers)
        answer = engine.run([WindowRequest(plan, rows.window, QUESTIONS, keep=False)])[0].unwrap()
        return [reply.p_yes for reply in answer.answers]

    def measured(self, rows: Rows) -> dict[str, Any]:
        """What a variant answers, and what it has of tokens and text."""
        frames = frames_of(rows.window)
        text = sum(len(frame.kept) > 0 or rows.labels is LabelPolicy.FRAME for frame in frames)
        if rows.labels is LabelPolicy.BLOCK:
            text = len(rows.window)
        tokens = sum(block.tokens for block in rows.window)
        return {"p": self.answer(rows), "tokens": tokens, "labelled": text}


def numbered(planner: Planner, plan: WindowPlan, numbers: Sequence[int]) -> WindowPlan:
    """The plan with other numbers in the frames' text, which keeps its width."""
    style, ids = planner.label, plan.token_ids.copy()
    assert style is not None
    for part, number in zip(plan.parts[1:], numbers, strict=True):
        text = style.ids(number)
        ids[part.start : part.start + len(text)] = text
    return with_digest(replace(plan, token_ids=ids))


def measured(path: Path, side: Side, cut: str, results: Results, kind: str) -> dict[str, Any] | None:
    """Every variant of one camera's first whole window: answers and tokens by name; None: it is too short."""
    key = f"{kind}, {cut}, {path.stem}"
    if f"{key}: whole" not in results:
        frames, step_us = side.strides(path, CUTS[cut])
        if len(frames) >= CUTS[cut][0]:
            camera = Camera(frames[: CUTS[cut][0]], step_us, side, cut)
            for name, rows in camera.variants():
                if f"{key}: {name}" not in results:
                    results.add(f"{key}: {name}", camera.measured(rows()))
        results.add(f"{key}: whole", len(frames) >= CUTS[cut][0])
    found = {
        name.removeprefix(f"{key}: "): value
        for name, value in results.found.items()
        if name.startswith(f"{key}: ") and not name.endswith(": whole")
    }
    return found if results.found[f"{key}: whole"] else None


def table(cameras: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every variant against the dense windows, over cameras."""

    def apart(own: Sequence[dict[str, Any]], name: str) -> np.ndarray:
        return np.array([np.abs(np.array(c[name]["p"]) - np.array(c["dense"]["p"])).mean() for c in own])

    out = {}
    for name in dict.fromkeys(name for camera in cameras for name in camera):
        # A period that spends more than our masks do has no tokens left for what moved.
        own = [camera for camera in cameras if name in camera]
        values, ours = apart(own, name), apart(own, "ours")
        out[name] = {
            "cameras": len(own),
            "dp": round(float(values.mean()), 4),
            "dp_interval": interval(values),
            "over_ours": round(float((values - ours).mean()), 4),
            "over_ours_interval": interval(values - ours),
            "tokens": round(float(np.mean([camera[name]["tokens"] for camera in own])), 1),
            "labelled": round(float(np.mean([camera[name]["labelled"] for camera in own])), 1),
        }
    return out


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """`dp` on rendered cameras: ours and whole frames, with text of frames without a token and without it."""
    shown = {
        "ours": "ours",
        "ours_behind_the_tower": "behind the tower",
        "ours_labels_of_kept_frames": "ours, labels of kept frames",
        "frames": "frames",
        "frames_every_label": "frames, every label",
    }
    return {name: rows[variant]["dp"] for name, variant in shown.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cameras", type=int, default=20, help="rendered ones")
    parser.add_argument("--frames", nargs="+", choices=tuple(CUTS), default=["80"])
    parser.add_argument("--model", type=Path, default=None, help="another checkpoint of the tiny model")
    parser.add_argument("--keep", type=Path, default=Path("out/kept"), help="folder for clips and answers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = options.model or find_model()
    side = Side(model, 1)
    options.keep.mkdir(parents=True, exist_ok=True)
    results = Results(options.keep / f"results-{folder_digest(model)[:12]}.jsonl")
    tables: dict[str, Any] = {}
    for cut in options.frames:
        blocks, samples = CUTS[cut]
        films = rendered_clips(options.cameras, options.keep, HELD_BACK, blocks * samples)
        all_cameras = [
            measured(path, side, cut, results, "rendered")
            for path, _ in tqdm(films, total=options.cameras, disable=None)
        ]
        found = [camera for camera in all_cameras if camera is not None]
        tables[f"rendered, {cut} frames"] = table(found)
        where = find_footage()
        if where is not None:
            key = f"clips, {cut}"
            if key not in results:  # every clip is decoded to see how long it is
                length = Cut(frames=samples, chain=1, shortest=blocks)
                results.add(key, [str(path) for path in real_clips(where, side.tower, length)])
            clips = [measured(Path(path), side, cut, results, "real") for path in results.found[key]]
            if any(clips):
                tables[f"real, {cut} frames"] = table([clip for clip in clips if clip])
    side.engine.close()
    for name, rows in tables.items():
        print(f"{name}:")
        for variant, row in rows.items():
            print(
                f"  {variant:36} cameras {row['cameras']:2}  tokens {row['tokens']:6.1f}  "
                f"labels {row['labelled']:4.1f}  |dp| {row['dp']:.4f} {row['dp_interval']}  "
                f"over ours {row['over_ours']:+.4f} {row['over_ours_interval']}"
            )
    print(json.dumps(summary(next(iter(tables.values()))) | {"tables": tables}))


if __name__ == "__main__":
    main()
