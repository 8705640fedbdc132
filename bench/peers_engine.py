"""A window that slides, beside what others offer: `make bench-peers-engine`. One footage, one run.

The trained tiny model answers the product's questions about rendered cameras that it never saw and about real
clips of fixed cameras, in windows of 8 and of 80 frames. By method:

- `resend`: every patch, every window computed whole: the reference of |dp| and F1.
- `append`: an append-only session as vLLM's RFC 51948 describes, emulated: nothing leaves, nothing is pruned.
- `frames`: whole frames are dropped, evenly; windows are computed whole.
- `evs`, `vidcom2`: the installed vLLM's own functions drop tokens behind the tower; windows are whole.
- `cacheblend`, `vlcache`: our masks, these rules of reuse. `ours`: the default preset.

`equal`: methods with a rate keep as many tokens as ours. `default`: rates of their own (half of the frames;
EVS .5; VidCom2 a quarter kept). A camera's first window is left out: methods that reuse KV compute it whole.
Time is CPU seconds of a window: the tower's, which sees every frame once, and those of a random language
model with a 7B's proportions (bench/windows.py, `small`) on the same rows; FLOPs are counted on it.
Intervals are 95 % over cameras. The last line is JSON: times of peers over ours, and by how much their |dp|
is above ours, at equal tokens.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from tqdm import tqdm

from bench import windows as shapes
from bench.windows_fidelity import Cut, interval, real, rendered
from lookout.engines import Question, WindowAnswer, WindowRequest
from lookout.engines.transformers import TransformersEngine, load_engine
from lookout.families import load_layout, load_tower
from lookout.models import DEMO_QUESTIONS, find_model
from lookout.pruning import PrunePolicy
from lookout.streams import EncodedStrides, StrideFrame, encode_strides, read_clip, strides_of
from lookout.vision import Tower
from lookout.windows import DEFAULT_PRESET, PRESETS, EncodedFrame, Planner, Policy, StrideBlock, WindowPlan
from tests.conftest import find_footage
from tests.tiny_models import checkpoint

QUESTIONS: Final = [Question(name, text) for name, text in DEMO_QUESTIONS.items()]
CUTS: Final = {"8": (4, 2), "80": (5, 16)}  #: blocks of a window, frames of a block
RATES: Final = {"frames": 0.5, "evs": 0.5, "vidcom2": 0.25}  #: share of tokens kept by default
CHAINED: Final = {"cacheblend": Policy.CACHEBLEND, "vlcache": Policy.VLCACHE, "ours": None}
METHODS: Final = ("resend", "append", *RATES, *CHAINED)
KEEP_ALL: Final = PrunePolicy(everything=True)
Mask = Callable[..., torch.Tensor]


@dataclass(slots=True)
class Spent:
    """What a method did on one camera, window by window."""

    p: list[list[float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    flops: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Strides:
    """A camera's strides under one kind of mask, with CPU seconds and FLOPs of the tower for each."""

    blocks: list[StrideBlock] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    flops: list[int] = field(default_factory=list)


def encoded(
    tower: Tower, strides: Sequence[Sequence[StrideFrame]], policy: PrunePolicy, step_us: int
) -> Strides:
    """Encode a camera's strides one after the other."""
    out, carry = Strides(), None
    for index, frames in enumerate(strides):
        start = time.process_time()
        stride: EncodedStrides = encode_strides([frames], tower, policy, step_us, carry)
        out.seconds.append(time.process_time() - start)
        out.flops.append(tower.flops(stride.inputs))
        out.blocks.append(StrideBlock("camera/0", index, stride.strides[0]))
        carry = stride.carry
    return out


def vllm_masks() -> dict[str, Mask]:
    """The installed vLLM's own rules of dropping tokens; none where it has none."""
    try:
        from vllm.multimodal.video_prune import evs, vidcom2
    except ImportError:
        return {}
    return {"evs": evs.compute_retention_mask, "vidcom2": vidcom2.compute_retention_mask}


def dropped(window: Sequence[StrideBlock], rule: Mask, share: float) -> list[StrideBlock]:
    """A dense window without the tokens that a rule drops; it decides over the whole window."""
    frames = [frame for block in window for frame in block.frames]
    rows, cols = frames[0].keep.shape
    mask = rule(torch.cat([frame.tokens for frame in frames]), (len(frames), rows, cols), 1, 1 - share)
    keeps = iter(mask.reshape(len(frames), rows, cols).numpy())
    return [
        replace(block, frames=tuple(_kept(frame, next(keeps)) for frame in block.frames)) for block in window
    ]


def _kept(frame: EncodedFrame, keep: np.ndarray) -> EncodedFrame:
    rows = torch.from_numpy(np.flatnonzero(keep))
    return replace(frame, keep=keep, tokens=frame.tokens.index_select(0, rows))


def thinned(window: Sequence[StrideBlock], share: float) -> list[StrideBlock]:
    """A dense window with some of its frames, evenly; one at least."""
    total = sum(len(block.frames) for block in window)
    chosen = set(np.linspace(0, total - 1, max(1, round(share * total))).round().astype(int).tolist())
    number, out = 0, []
    for block in window:
        frames = [frame for place, frame in enumerate(block.frames) if number + place in chosen]
        number += len(block.frames)
        out.append(replace(block, frames=tuple(frames)))
    return out


def widened(block: StrideBlock, hidden: int) -> StrideBlock:
    """The block for a model of another width: the same groups, random tokens."""
    if block.frames and block.frames[0].tokens.shape[1] == hidden:
        return block
    draw = torch.Generator().manual_seed(block.index)
    frames = [replace(f, tokens=torch.randn(len(f.kept), hidden, generator=draw)) for f in block.frames]
    return replace(block, frames=tuple(frames))


class Camera:
    """One camera, answered by every method.

    Args:
        path: The clip.
        tower: Of the trained model.
        engines: Of the same, and the one that is timed.
        cut: Blocks of a window and frames of a block.
        windows: At most so many whole windows.
    """

    def __init__(
        self,
        path: Path,
        tower: Tower,
        engines: Sequence[TransformersEngine],
        cut: tuple[int, int],
        windows: int,
    ) -> None:
        self._engines, (self._blocks, samples) = engines, cut
        clip = read_clip(path, tower.grid)
        strides = [members for _, members in strides_of(clip.frames, samples) if len(members) == samples]
        strides = strides[: self._blocks + windows]
        self._dense = encoded(tower, strides, KEEP_ALL, clip.step_us)
        self._pruned = encoded(tower, strides, PrunePolicy(), clip.step_us)
        self._settings = replace(PRESETS[DEFAULT_PRESET], blocks=self._blocks, samples=samples)

    def answers(self, method: str, share: float | None, masks: dict[str, Mask]) -> Spent:
        """Every whole window by one method.

        Args:
            method: One of `METHODS`.
            share: Of tokens or frames kept; None: as many as ours of the same window.
            masks: vLLM's rules.
        """
        source = self._pruned if method in CHAINED else self._dense
        spent, rate = Spent(), 1.0
        plans: list[WindowPlan | None] = [None] * len(self._engines)
        for last in range(self._blocks, len(source.blocks) + 1):
            window = source.blocks[last - self._blocks : last]
            start = time.process_time()
            if method in (*masks, "frames"):
                rate = share if share is not None else self._share(last)
                window = dropped(window, masks[method], rate) if method in masks else thinned(window, rate)
            deciding = time.process_time() - start
            rows = source.blocks[:last] if method == "append" else window
            answers, seconds = [], 0.0
            for place, engine in enumerate(self._engines):
                fitted = [widened(block, engine.model.hidden) for block in rows]
                start = time.process_time()
                plans[place], answer = self._answer(engine, method, fitted, plans[place])
                seconds = time.process_time() - start  # of the last engine
                answers.append(answer)
            if last == self._blocks:
                continue
            # A dropped frame is not encoded; a dropped token is.
            seen = rate if method == "frames" else 1.0
            spent.p.append([reply.p_yes for reply in answers[0].answers])
            spent.seconds.append(deciding + seconds + seen * source.seconds[last - 1])
            spent.flops.append(answers[-1].cost.total_flops + seen * source.flops[last - 1])
            spent.tokens.append(sum(block.tokens for block in window))
        for engine in self._engines:
            engine.close_stream("camera/0")
        return spent

    def _answer(
        self, engine: TransformersEngine, method: str, rows: Sequence[StrideBlock], plan: WindowPlan | None
    ) -> tuple[WindowPlan | None, WindowAnswer]:
        """One window on one engine, and its plan where the next one continues it."""
        chained = method == "append" or method in CHAINED
        settings = replace(self._settings, key_every=10_000)
        if method == "append":
            settings = replace(settings, blocks=1 << 20, policy=Policy.REUSE_ALL)
        if not chained:
            settings = replace(settings, policy=Policy.PRUNE_ONLY)
        planned = Planner(engine.layout, settings).plan(rows, plan, policy=CHAINED.get(method))
        answer = engine.run([WindowRequest(planned, rows, QUESTIONS, keep=chained)])[0].unwrap()
        return planned if chained else None, answer

    def _share(self, last: int) -> float:
        """Share of the tokens of a window that our masks keep."""
        ours, all_tokens = (
            sum(block.tokens for block in strides.blocks[last - self._blocks : last])
            for strides in (self._pruned, self._dense)
        )
        return ours / all_tokens


def f1(p: np.ndarray, truth: np.ndarray) -> float:
    """F1 of yes against the dense answers; 1 where neither says yes."""
    yes, right = p > 0.5, truth > 0.5
    both = float((yes & right).sum())
    return 1.0 if not (yes | right).any() else 2 * both / float(yes.sum() + right.sum())


def table(cameras: Sequence[dict[str, Spent]]) -> dict[str, dict[str, Any]]:
    """Every method against the dense windows and ours; means over cameras."""
    out = {}
    for method in cameras[0]:
        pairs = [(np.array(camera[method].p), np.array(camera["resend"].p)) for camera in cameras]
        apart = np.array([np.abs(p - truth).mean() for p, truth in pairs])
        ratios = np.array([np.mean(c[method].seconds) / np.mean(c["ours"].seconds) for c in cameras])
        flops = [np.mean(camera[method].flops) / np.mean(camera["resend"].flops) for camera in cameras]
        out[method] = {
            "dp": round(float(apart.mean()), 4),
            "dp_interval": interval(apart),
            "f1": round(float(np.mean([f1(p, truth) for p, truth in pairs])), 4),
            "time_over_ours": round(float(ratios.mean()), 3),
            "time_interval": interval(ratios),
            "flops_of_resend": round(float(np.mean(flops)), 4),
            "tokens": round(float(np.mean([np.mean(camera[method].tokens) for camera in cameras])), 1),
        }
    return out


def measured(paths: Sequence[Path], cut: tuple[int, int], windows: int) -> dict[str, dict[str, Any]]:
    """Both footings of one kind of footage and one length of windows."""
    folder = find_model()
    tower, masks = load_tower(folder), vllm_masks()
    engines = [load_engine(folder), shapes.model("small", torch.device("cpu"), torch.float32)]
    methods = [method for method in METHODS if method in masks or method not in ("evs", "vidcom2")]
    equal: list[dict[str, Spent]] = []
    default: list[dict[str, Spent]] = []
    for path in tqdm(paths, unit="camera", disable=None):
        camera = Camera(path, tower, engines, cut, windows)
        found = {method: camera.answers(method, None, masks) for method in methods}
        equal.append(found)
        rated = {
            method: camera.answers(method, RATES[method], masks) for method in methods if method in RATES
        }
        default.append(found | rated)
    for engine in engines:
        engine.close()
    return {"equal": table(equal), "default": table(default)}


def summary(kinds: dict[str, dict[str, dict[str, dict[str, Any]]]], low: float) -> dict[str, Any]:
    """The last line: ratios at the longest windows and equal tokens, on rendered cameras."""
    rows = kinds["rendered, 80 frames" if "rendered, 80 frames" in kinds else next(iter(kinds))]["equal"]
    ours = rows["ours"]

    def beside(method: str) -> dict[str, float] | None:
        if method not in rows:
            return None
        return {"time": rows[method]["time_over_ours"], "dp": round(rows[method]["dp"] - ours["dp"], 4)}

    on_real = [kind["equal"]["ours"]["dp"] for name, kind in kinds.items() if name.startswith("real")]
    return {
        "vs_resend": rows["resend"]["time_over_ours"],
        "vs_append": rows["append"]["time_over_ours"],
        "vs_evs": beside("evs"),
        "vs_vidcom2": beside("vidcom2"),
        "low_motion_flops_saved": low,
        "dp_real": on_real[-1] if on_real else None,
    }


def low_motion() -> float:
    """FLOPs that the default saves at low motion, at the shape of a 7B (bench-windows counts the same)."""
    layout = load_layout(checkpoint("internvl"))
    base = replace(
        PRESETS[DEFAULT_PRESET], blocks=shapes.BLOCKS, samples=shapes.FRAMES, key_every=shapes.PERIOD
    )
    motion = Path(shapes.__file__).with_name("motion.json")
    keep = shapes.levels(motion, "default")["low"]
    full = sum(shapes.full_size(layout, [1.0], Policy.FULL, base, 5))
    language, vision = shapes.full_size(layout, keep, base.policy, base, 5)
    whole, _ = shapes.full_size(layout, keep, Policy.PRUNE_ONLY, base, 5)
    return round(1 - (((shapes.PERIOD - 1) * language + whole) / shapes.PERIOD + vision) / full, 4)


def footage(count: int, cut: tuple[int, int], keep: Path, tower: Tower) -> Iterator[tuple[str, list[Path]]]:
    """Rendered cameras and real clips for one length of windows."""
    length = Cut(frames=cut[1], chain=10, shortest=cut[0] + 3)
    keep.mkdir(parents=True, exist_ok=True)
    yield "rendered", rendered(count, keep, length)[-count:]
    where = find_footage()
    if where is not None:
        yield "real", list(real(where, tower, length))[:count]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cameras", type=int, default=8, help="of each kind")
    parser.add_argument("--windows", type=int, default=8, help="of each camera")
    parser.add_argument("--frames", nargs="+", choices=tuple(CUTS), default=list(CUTS))
    parser.add_argument(
        "--keep", type=Path, default=Path("out/peers-engine"), help="folder for rendered clips"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    tower = load_tower(find_model())
    kinds: dict[str, Any] = {}
    for frames in options.frames:
        for kind, paths in footage(options.cameras, CUTS[frames], options.keep, tower):
            if paths:
                name = f"{kind}, {frames} frames"
                kinds[name] = measured(paths, CUTS[frames], options.windows)
                show(name, kinds[name])
    print(json.dumps(summary(kinds, low_motion()) | {"tables": kinds}))


def show(name: str, footings: dict[str, dict[str, dict[str, Any]]]) -> None:
    """One table."""
    for footing, rows in footings.items():
        print(f"{name}, {footing} rates:")
        for method, row in rows.items():
            print(
                f"  {method:12} time {row['time_over_ours']:6.2f}  FLOPs {row['flops_of_resend']:6.1%}  "
                f"tokens {row['tokens']:7.1f}  |dp| {row['dp']:.4f}  F1 {row['f1']:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
